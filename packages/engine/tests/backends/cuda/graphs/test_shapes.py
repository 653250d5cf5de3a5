"""Captured shapes of steps, and padding that does not change a step."""

import numpy as np
import pytest
from spaninfer_engine.backends.cuda.graphs.sampling import (
    ALL_ROWS,
    FEW_ROWS,
    FEWEST_ROWS,
    PLAIN,
    SamplingLaunches,
)
from spaninfer_engine.backends.cuda.graphs.shapes import (
    PROMPT_TOKENS,
    GraphShape,
    GraphShapes,
    max_prompt_tokens,
    write_columns,
)
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.step.batch import build_batch
from spaninfer_engine.step.plan import NewSequence, Slice
from spaninfer_engine.step.sampling import SamplingWork
from spaninfer_engine.step.sequences import Sequences
from threaded_device import Columns

SHAPES = GraphShapes(
    requests=200, max_prompt_tokens=600, mixed_prompt_tokens=2048, many_prompt_tokens=2048
)


def decodes(count):
    return [Slice(number, 40 + number, 41 + number, 40 + number, True) for number in range(count)]


def prompt(number, length, *, samples=True):
    return Slice(number, 3, 3 + length, 3 + length - samples, samples)


def batch_of(slices):
    sequences = Sequences(1, max_len=1, span_len=1, num_rows=1)
    for seq_id in {part.seq_id for part in slices}:
        sequences.enter(NewSequence(seq_id, (0,), SamplingParams(), 0))
    return build_batch(slices, sequences)


def columns_of(batch, shape, capacity=300):
    """Return the columns of a padded batch, and the padding."""
    columns = Columns.poisoned(capacity)
    rows = [(7 * number) % 200 for number in range(batch.num_slices)]
    deltas = -np.arange(1, batch.num_slices + 1, dtype=np.int32)
    return columns, write_columns(columns, batch, rows, deltas, shape)


@pytest.mark.parametrize(
    ("slices", "shape"),
    [
        (decodes(1), GraphShape(1)),
        (decodes(3), GraphShape(4)),
        (decodes(9), GraphShape(16)),
        (decodes(65), GraphShape(80)),
        (decodes(129), GraphShape(160)),
        (decodes(200), GraphShape(200)),
        ([prompt(1, 20)], GraphShape(0, 1, 32)),
        ([prompt(1, 20), prompt(2, 50)], GraphShape(0, 16, 128)),
        ([prompt(1, 416)], GraphShape(0, 1, 416)),
        ([*decodes(3), prompt(7, 20), prompt(8, 70, samples=False)], GraphShape(16, 16, 128)),
        ([*decodes(3), prompt(7, 416)], GraphShape(16, 16, 448)),
        ([*decodes(130), prompt(99, 512)], GraphShape(192, 16, 512)),
        ([*decodes(193), prompt(99, 513)], GraphShape(200, 16, 576)),
        ([*decodes(1), prompt(99, 2000)], GraphShape(16, 16, 2048)),
        ([prompt(number, 8) for number in range(17)], GraphShape(0, 64, 256)),
        ([*decodes(100), *(prompt(100 + n, 5) for n in range(64))], GraphShape(128, 64, 384)),
        ([*decodes(70), *(prompt(70 + n, 9) for n in range(110))], GraphShape(128, 200, 1024)),
    ],
    ids=lambda value: str(value) if isinstance(value, GraphShape) else len(value),
)
def test_a_step_takes_the_smallest_shape_that_it_fits_into(slices, shape):
    assert SHAPES.find(batch_of(slices), PLAIN) == shape


def reported(number, length):
    """A prompt whose every token gets logits."""
    return Slice(number, 0, length, 0, True)


@pytest.mark.parametrize(
    ("slices", "shape"),
    [
        ([reported(1, 20)], GraphShape.open(64, 512)),
        ([*decodes(3), reported(7, 500), prompt(8, 20)], GraphShape.open(64, 1024)),
        ([*decodes(64), reported(7, 2048)], GraphShape.open(64, 2048)),
        ([*decodes(65), *(reported(n, 60) for n in range(100, 116))], GraphShape.open(200, 1024)),
        ([*decodes(3), reported(7, 2049)], None),
        ([*decodes(3), *(reported(n, 9) for n in range(100, 117))], None),
    ],
)
def test_prompts_with_logits_of_many_tokens_take_a_shape_without_an_end(slices, shape):
    assert SHAPES.find(batch_of(slices), SamplingLaunches(typical=FEW_ROWS)) == shape
    assert SHAPES.find(batch_of(slices), PLAIN, host_angles=True) is None


def test_logits_behind_padding_lie_where_the_padding_says():
    batch = batch_of([*decodes(2), reported(7, 5), prompt(8, 3)])
    columns, padding = columns_of(batch, GraphShape.open(4, 16), capacity=20)

    assert columns.logit_start_loc[:7].tolist() == [0, 1, 2, 3, 4, 9, 10]
    assert padding.place(np.arange(batch.num_logits)).tolist() == [0, 1, *range(4, 10)]


@pytest.mark.parametrize(
    "slices",
    [
        decodes(201),
        [prompt(1, 577)],
        [prompt(number, 9) for number in range(201)],
        [Slice(9, 0, 1, 1, False), *decodes(2)],
    ],
    ids=["decodes", "rows", "prompts", "a chunk of one row"],
)
def test_what_fits_no_shape_is_launched_one_by_one(slices):
    assert SHAPES.find(batch_of(slices), PLAIN) is None


def test_many_prompts_of_a_model_that_computes_longer_than_launching_takes_have_no_shape():
    large = GraphShapes(200, 1024, 2048, many_prompt_tokens=175)
    few, more = ([prompt(number, length) for number in range(20)] for length in (6, 7))

    assert large.find(batch_of(few), PLAIN) == GraphShape(0, 64, 128)
    assert large.find(batch_of(more), PLAIN) is None
    assert large.find(batch_of([reported(7, 100)]), PLAIN) is None


def test_angles_of_the_host_go_with_decodes_alone():
    for slices, shape in ((decodes(1), GraphShape(1)), ([prompt(1, 20)], None)):
        batch = batch_of(slices)

        assert SHAPES.find(batch, PLAIN, host_angles=True) == shape


def test_a_padded_step_has_the_same_slices_with_empty_ones_between_and_behind():
    slices = [*decodes(2), prompt(7, 5), prompt(8, 4, samples=False), prompt(9, 6)]
    columns, padding = columns_of(batch_of(slices), GraphShape(4, 5, 30), capacity=9)

    assert columns.table_rows.tolist() == [0, 7, -1, -1, 14, 21, 28, -1, -1]
    assert columns.starts.tolist() == [40, 41, 0, 0, 3, 3, 3, 0, 0]
    assert columns.stops.tolist() == [41, 42, 0, 0, 8, 7, 9, 0, 0]
    assert columns.sample_positions.tolist() == [41, 42, -1, -1, 8, -1, 9, -1, -1]
    assert columns.position_deltas.tolist() == [-1, -2, 0, 0, -3, -4, -5, 0, 0]
    assert columns.query_start_loc.tolist() == [0, 1, 2, 3, 4, 9, 13, 19, 19, 19]
    assert columns.logit_start_loc.tolist() == [0, 1, 2, 3, 4, 5, 5, 6, 6, 6]
    assert padding.place(np.arange(4)).tolist() == [0, 1, 4, 5]
    assert padding.remove(np.arange(9)).tolist() == [0, 1, 4, 5, 6, 7, 8]


def test_padded_decodes_stay_in_front():
    columns, _ = columns_of(batch_of(decodes(3)), GraphShape(8), capacity=8)

    assert columns.table_rows.tolist() == [0, 7, 14, *[-1] * 5]
    assert columns.stops.tolist() == [41, 42, 43, *[0] * 5]
    assert columns.query_start_loc.tolist() == columns.logit_start_loc.tolist() == list(range(9))


def test_a_step_that_fills_its_shape_has_no_padding():
    batch = batch_of([*decodes(2), prompt(5, 8)])

    columns, padding = columns_of(batch, GraphShape(2, 1, 8), capacity=4)

    assert padding.remove(np.arange(3)).tolist() == [0, 1, 2]
    assert padding.place(np.array([2])).tolist() == [2]
    assert columns.query_start_loc[:4].tolist() == [0, 1, 2, 10]


def test_columns_of_a_step_as_it_is_are_those_of_the_batch():
    batch = batch_of([*decodes(2), prompt(7, 5, samples=False)])

    columns, padding = columns_of(batch, None, capacity=3)

    assert columns.table_rows.tolist() == [0, 7, 14]
    assert columns.sample_positions.tolist() == [41, 42, -1]
    assert columns.query_start_loc.tolist() == batch.query_start_loc.tolist()
    assert columns.logit_start_loc.tolist() == batch.logit_start_loc.tolist()
    assert padding.remove(np.arange(2)).tolist() == [0, 1]


def test_the_step_that_is_captured_has_room_for_everything():
    step = GraphShape(16, 4, 128).step

    sizes = (step.num_slices, step.num_tokens, step.num_logits, step.num_decodes)
    assert sizes == (20, 144, 20, 16)
    assert step.sampling == PLAIN


@pytest.mark.parametrize(
    ("work", "sampling"),
    [
        (SamplingWork(penalties=2), SamplingLaunches(penalties=True)),
        (SamplingWork(typical=1), SamplingLaunches(typical=FEWEST_ROWS)),
        (SamplingWork(typical=FEWEST_ROWS), SamplingLaunches(typical=FEWEST_ROWS)),
        (SamplingWork(typical=FEWEST_ROWS + 1), SamplingLaunches(typical=FEW_ROWS)),
        (SamplingWork(logprobs=FEW_ROWS), SamplingLaunches(logprobs=FEW_ROWS)),
        (
            SamplingWork(penalties=20, typical=FEW_ROWS + 1, logprobs=20),
            SamplingLaunches(penalties=True, typical=ALL_ROWS, logprobs=ALL_ROWS),
        ),
    ],
)
def test_decodes_have_a_shape_for_each_way_of_sampling_and_prompts_one(work, sampling):
    launches = SamplingLaunches.of(work)

    assert launches == sampling
    assert SHAPES.find(batch_of(decodes(20)), launches) == GraphShape(24, sampling=sampling)
    assert SHAPES.find(batch_of([*decodes(3), prompt(7, 20)]), launches) == GraphShape(16, 16, 32)


def test_decodes_that_wait_for_masks_are_not_sampled_in_their_graph():
    shape = SHAPES.find(batch_of(decodes(2)), None)

    assert shape == GraphShape(2, sampling=None)
    assert shape.step.sampling is None


def test_small_models_have_more_rows_to_be_captured_and_all_have_those_that_come_beside_decodes():
    assert max_prompt_tokens(24, 494_000_000) > 2000
    assert max_prompt_tokens(28, 7_600_000_000) == 1024


@pytest.mark.parametrize("requests", [1, 3, 16, 17, 256, 1000])
def test_shapes_serve_every_number_of_decodes_up_to_256(requests):
    shapes = GraphShapes(requests, 0, 2048)
    most = min(requests, 256)

    for count in range(1, most + 1):
        shape = shapes.find(batch_of(decodes(count)), PLAIN)
        assert shape is not None
        assert count <= shape.decodes <= max(count * 2, 8)
    assert max(shape.decodes for shape in shapes.at_start) == most


def test_every_shape_that_a_step_may_take_is_known_at_the_start_or_among_the_others():
    known = {*SHAPES.at_start, *SHAPES.others}

    assert len(known) == len(SHAPES.at_start) + len(SHAPES.others)
    for count in (0, 1, 16, 17, 64, 150, 200):
        for prompts in (0, 1, 2, 16, 17, 64, 65):
            for length in (2, 30, 36):
                slices = [*decodes(count), *(prompt(250 + n, length) for n in range(prompts))]
                if slices:
                    shape = SHAPES.find(batch_of(slices), PLAIN)
                    assert shape is None or shape in known


def test_what_is_not_captured_yet_fits_a_shape_of_the_start():
    for shape in SHAPES.others:
        decodes = [n for n in (64, 200) if n >= shape.decodes]

        fallbacks = SHAPES.fallbacks(shape)

        prompts, sizes = (200, (512, 2048)) if shape.prompts > 16 else (16, PROMPT_TOKENS)
        rows = min(rows for rows in sizes if rows >= shape.prompt_tokens)
        assert fallbacks == tuple(GraphShape(n, prompts, rows) for n in decodes)
        assert {*fallbacks} <= {*SHAPES.at_start}


def test_prompts_alone_that_are_longer_than_any_beside_decodes_have_no_fallback():
    small_model = GraphShapes(requests=200, max_prompt_tokens=2600, mixed_prompt_tokens=2048)

    assert GraphShape(0, 1, 2560) in small_model.others
    assert small_model.fallbacks(GraphShape(0, 1, 2560)) == ()
    assert SHAPES.fallbacks(GraphShape(16)) == ()


def test_prompts_alone_are_computed_behind_a_fallback_s_empty_decodes():
    batch = batch_of([prompt(0, 5), prompt(1, 4)])

    columns, padding = columns_of(batch, GraphShape(3, 3, 16), capacity=12)

    assert columns.table_rows[:6].tolist() == [-1, -1, -1, 0, 7, -1]
    assert columns.query_start_loc[:7].tolist() == [0, 1, 2, 3, 8, 12, 12]
    assert columns.logit_start_loc[:7].tolist() == [0, 1, 2, 3, 4, 5, 5]
    assert padding.remove(np.arange(5)).tolist() == [3, 4]


def test_at_the_start_the_shape_with_most_tokens_is_the_first():
    rows = [shape.decodes + shape.prompt_tokens for shape in SHAPES.at_start]

    assert rows == sorted(rows, reverse=True)
    assert SHAPES.at_start[0] == GraphShape(200, 200, 2048)
    assert GraphShape(0, 16, 576) in SHAPES.at_start
    assert GraphShapes(4, 0, 2048).others == ()
