"""Inputs of recorded scripts, which follow every step."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from spaninfer_engine.backends.cpu.inputs import Inputs
from spaninfer_engine.backends.host.device import build_step
from spaninfer_engine.backends.reference.ops import ReferenceOps
from spaninfer_engine.ops.rotary import Rotary
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.spec.attention_nodes import Rope
from spaninfer_engine.spec.frequencies import Frequencies
from spaninfer_engine.step.batch import build_batch
from spaninfer_engine.step.plan import NewSequence, Slice, TableUpdate
from spaninfer_engine.step.sequences import Sequences

SPAN_LEN = 4
KINDS: dict[Any, Any] = {np.int32: ctypes.c_int32, np.float32: ctypes.c_float}


def _sequences(num_rows: int) -> Sequences:
    return Sequences(1, max_len=40, span_len=SPAN_LEN, num_rows=num_rows)


def _enter(sequences: Sequences, seq_id: int) -> None:
    """Take in a sequence whose tokens, and spans, nobody else has."""
    sequences.enter(NewSequence(seq_id, 100 * seq_id + np.arange(30), SamplingParams(), seed=0))
    sequences.update_table(TableUpdate(seq_id, 0, 0, tuple(range(50 * seq_id, 50 * seq_id + 8))))


def _fill(
    inputs: Inputs, sequences: Sequences, *parts: tuple[int, int, int], width: int = 4
) -> None:
    """Fill in a step with positions [start, stop) of sequences."""
    slices = [Slice(seq_id, start, stop, stop - 1, True) for seq_id, start, stop in parts]
    rotary = Rotary(Rope("half", Frequencies("default", 2 * width, 1e4, 40, 40)))
    batch = build_batch(slices, sequences, sequences.by_id)
    inputs.fill(build_step(batch, sequences, ReferenceOps("float32"), (), (rotary,)))


def _at(word: int, shape: tuple[int, ...], kind: Any = np.int32) -> NDArray[Any]:
    """Return what lies where a word says."""
    (address,) = np.ctypeslib.as_array((ctypes.c_int64 * 1).from_address(word))
    numbers = (KINDS[kind] * int(np.prod(shape))).from_address(int(address))
    return np.ctypeslib.as_array(numbers).reshape(shape).copy()


@pytest.mark.parametrize("counts", [(1, 1), (1, 9, 2), (30, 1), (3, 17, 30, 4)])
def test_words_name_the_tokens_of_the_latest_step(counts: tuple[int, ...]) -> None:
    inputs, sequences = Inputs(), _sequences(2)
    _enter(sequences, 1)
    _enter(sequences, 2)

    for turn, count in enumerate(counts):
        seq_id = 1 + turn % 2
        _fill(inputs, sequences, (seq_id, 0, count))

        assert _at(inputs.token_ids, (count,)).tolist() == [100 * seq_id + i for i in range(count)]
        assert _at(inputs.position, (count,)).tolist() == list(range(count))
        assert _at(inputs.request, (count,)).tolist() == [sequences.row(seq_id)] * count
        assert _at(inputs.logit_indices, (1,)).tolist() == [count - 1]


def test_words_name_the_angles_of_the_latest_step_whatever_their_width() -> None:
    inputs, sequences = Inputs(), _sequences(1)
    _enter(sequences, 1)

    for width, count in ((4, 2), (16, 2), (4, 9), (4, 1)):
        _fill(inputs, sequences, (1, 5, 5 + count), width=width)

        cosines = _at(inputs.angles(0)[0], (count, width), np.float32)
        inverse = 1e4 ** (-np.arange(width) / width)
        np.testing.assert_allclose(
            cosines, np.cos(np.arange(5, 5 + count)[:, None] * inverse), atol=1e-5
        )


def test_span_tables_are_found_again_where_more_sequences_have_moved_them() -> None:
    inputs, sequences = Inputs(), _sequences(1)
    _enter(sequences, 1)
    _fill(inputs, sequences, (1, 0, 3))
    before = sequences.tables

    _enter(sequences, 2)
    _fill(inputs, sequences, (2, 0, 3))

    assert sequences.tables is not before
    table = _at(inputs.table(0)[0], sequences.tables[0].shape)
    assert table[sequences.row(2), :8].tolist() == list(range(100, 108))
