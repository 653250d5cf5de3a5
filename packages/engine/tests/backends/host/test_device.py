"""The context of a step on devices that read sequences in place."""

import numpy as np
from spaninfer_engine.backends.cpu.ops import CpuOps
from spaninfer_engine.backends.host.device import build_step
from spaninfer_engine.ops.rotary import Rotary
from spaninfer_engine.ops.step import Step
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.spec.attention_nodes import Rope
from spaninfer_engine.spec.frequencies import Frequencies
from spaninfer_engine.step.batch import build_batch
from spaninfer_engine.step.plan import NewSequence, Slice, TableUpdate
from spaninfer_engine.step.sequences import Sequences

PLAIN = Frequencies("default", dim=4, theta=100.0, max_len=64, original_len=64)


def _sequences() -> Sequences:
    """Sequences 7 and 8 with tokens 100 … and 200 …, and spans 40 … and 50 … of two positions."""
    sequences = Sequences(1, max_len=16, span_len=2, num_rows=2)
    for seq_id, first, span in ((7, 100, 40), (8, 200, 50)):
        sequences.enter(NewSequence(seq_id, tuple(range(first, first + 10)), SamplingParams(), 0))
        sequences.update_table(TableUpdate(seq_id, 0, 0, tuple(range(span, span + 5))))
    return sequences


def _build(*slices: Slice, rope: Rope | None = None) -> Step[np.ndarray]:
    rotaries = () if rope is None else (Rotary(rope),)
    sequences = _sequences()
    batch = build_batch(slices, sequences, sequences.by_id)
    return build_step(batch, sequences, CpuOps(), (), rotaries)


def test_tokens_are_gathered_from_their_sequences():
    step = _build(Slice(8, 4, 5, 4, True), Slice(7, 1, 4, 4, False))

    assert step.token_ids.tolist() == [204, 101, 102, 103]
    assert step.attention.positions.tolist() == [4, 1, 2, 3]
    assert step.logit_indices.tolist() == [0]


def test_every_token_knows_the_span_and_the_place_its_key_goes_to():
    step = _build(Slice(8, 4, 5, 4, True), Slice(7, 1, 4, 4, False))

    spans, places = step.attention.slot_mapping[0]
    assert spans.tolist() == [52, 40, 41, 41]
    assert places.tolist() == [0, 1, 0, 1]


def test_positions_have_as_many_axes_as_the_widest_rope():
    rope = Rope("half", PLAIN, sections=(1, 1, 0))

    step = _build(Slice(7, 1, 3, 3, False), rope=rope)

    assert step.positions.tolist() == [[1, 2]] * 3


def test_frequencies_are_those_of_the_length_that_the_slice_was_planned_with():
    changing = Frequencies(
        "longrope", 4, 100.0, 64, 8, short_factors=(1.0, 1.0), long_factors=(10.0, 10.0)
    )
    rope = Rope("half", changing)

    short = _build(Slice(7, 3, 4, 4, False, rope_seq_len=0), rope=rope).rotations[0]
    long = _build(Slice(7, 3, 4, 4, False, rope_seq_len=9), rope=rope).rotations[0]

    np.testing.assert_allclose(short.sin, np.sin([[3.0, 0.3]]), rtol=1e-6)
    np.testing.assert_allclose(long.sin, np.sin([[0.3, 0.03]]), rtol=1e-6)
