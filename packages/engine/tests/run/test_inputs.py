import numpy as np
from spaninfer_engine.ops.cpu import CpuOps
from spaninfer_engine.ops.step import Step, runs
from spaninfer_engine.plan import Entry, Growth, Slice
from spaninfer_engine.request import SamplingParams
from spaninfer_engine.run.inputs import build
from spaninfer_engine.run.requests import Requests
from spaninfer_engine.run.rotary import Rotary
from spaninfer_engine.spec.frequencies import Frequencies
from spaninfer_engine.spec.nodes import Rope

PLAIN = Frequencies("default", dim=4, theta=100.0, max_len=64, original_len=64)


def _requests() -> Requests:
    """Requests 7 and 8 with tokens 100 … and 200 …, and spans 40 … and 50 … of two positions."""
    requests = Requests(1, max_len=16, span_len=2, num_rows=2)
    for request_id, first, span in ((7, 100, 40), (8, 200, 50)):
        requests.enter(Entry(request_id, tuple(range(first, first + 10)), SamplingParams(), 0))
        requests.grow(Growth(request_id, 0, 0, tuple(range(span, span + 5))))
    return requests


def _build(*slices: Slice, rope: Rope | None = None) -> Step[np.ndarray]:
    rotaries = () if rope is None else (Rotary(rope),)
    return build(slices, _requests(), rotaries, CpuOps(), ())


def test_rows_follow_the_slices_in_order():
    step = _build(Slice(8, 4, 5, 4, True), Slice(7, 1, 4, 4, False))

    assert step.token_ids.tolist() == [204, 101, 102, 103]
    assert step.position.tolist() == [4, 1, 2, 3]
    assert step.bounds.tolist() == [0, 1, 4]
    assert step.request[0] != step.request[1]
    assert step.request[1:].tolist() == [step.request[1]] * 3


def test_every_row_knows_the_span_and_the_place_its_key_goes_to():
    step = _build(Slice(8, 4, 5, 4, True), Slice(7, 1, 4, 4, False))

    spans, places = step.written[0]
    assert spans.tolist() == [52, 40, 41, 41]
    assert places.tolist() == [0, 1, 0, 1]


def test_logits_are_wanted_from_where_each_slice_says():
    step = _build(Slice(8, 4, 5, 4, True), Slice(7, 1, 4, 4, False), Slice(7, 4, 8, 6, True))

    assert step.wanted.tolist() == [0, 6, 7]


def test_a_step_of_decodes_wants_every_row():
    step = _build(Slice(8, 4, 5, 4, True), Slice(7, 9, 10, 9, True))

    assert step.token_ids.tolist() == [204, 109]
    assert step.bounds.tolist() == [0, 1, 2]
    assert step.wanted.tolist() == [0, 1]


def test_slices_can_be_taken_one_by_one():
    step = _build(Slice(8, 4, 5, 4, True), Slice(7, 1, 4, 4, False))

    assert [(run.first, run.last, run.start, run.stop) for run in runs(step)] == [
        (0, 1, 4, 5),
        (1, 4, 1, 4),
    ]


def test_positions_have_as_many_axes_as_the_widest_rope():
    rope = Rope("half", PLAIN, sections=(1, 1, 0))

    step = _build(Slice(7, 1, 3, 3, False), rope=rope)

    assert step.positions.tolist() == [[1, 2]] * 3


def test_frequencies_are_those_of_the_length_that_the_slice_was_planned_with():
    changing = Frequencies(
        "longrope", 4, 100.0, 64, 8, short_factors=(1.0, 1.0), long_factors=(10.0, 10.0)
    )
    rope = Rope("half", changing)

    short = _build(Slice(7, 3, 4, 4, False, rope_len=0), rope=rope).rotations[0]
    long = _build(Slice(7, 3, 4, 4, False, rope_len=9), rope=rope).rotations[0]

    np.testing.assert_allclose(short.sin, np.sin([[3.0, 0.3]]), rtol=1e-6)
    np.testing.assert_allclose(long.sin, np.sin([[0.3, 0.03]]), rtol=1e-6)
