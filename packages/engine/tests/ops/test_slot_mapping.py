"""The slot mapping of a step: where its keys are written, in every cache group."""

from __future__ import annotations

import numpy as np
from spaninfer_engine.ops.step import SlotMapping
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.step.batch import build_batch
from spaninfer_engine.step.plan import NewSequence, Slice, TableUpdate
from spaninfer_engine.step.sequences import Sequences


def test_keys_go_to_the_spans_that_each_group_has_for_their_positions() -> None:
    sequences = Sequences(2, max_len=16, span_len=4, num_rows=2)
    for seq_id in (1, 2):
        sequences.enter(NewSequence(seq_id, np.zeros(9, np.int32), SamplingParams(), seed=0))
        for group in (0, 1):
            spans = tuple(100 * group + 10 * seq_id + index for index in range(3))
            sequences.update_table(TableUpdate(seq_id, group, 0, spans))
    slices = [Slice(2, 8, 9, 8, True), Slice(1, 3, 6, 5, True)]
    read = []

    mapping = SlotMapping(
        build_batch(slices, sequences, sequences.by_id),
        sequences,
        lambda array: read.append(array) or array,
    )

    assert not read  # kernels that read tables never ask
    for group in (0, 1, 0):
        spans, places = mapping[group]
        assert (spans - 100 * group).tolist() == [22, 10, 11, 11]
        assert places.tolist() == [0, 3, 0, 1]
    assert len(read) == 4  # each group's once
