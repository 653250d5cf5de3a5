import numpy as np
import pytest
from host_device import Columns
from spaninfer_engine.ops.step import Run
from spaninfer_engine.plan import Slice
from spaninfer_engine.run.describe import Asked, describe

DECODES = (Slice(7, 41, 42, 41, True), Slice(8, 5, 6, 5, True))
CHUNK = Slice(9, 0, 30, 30, False)
PROMPT = Slice(10, 4, 9, 8, True)


def test_decodes_want_and_draw_every_row():
    columns = Columns.poisoned(4)

    described = describe(DECODES, [3, 1], columns, set())

    assert columns.rows[:2].tolist() == [3, 1]
    assert columns.starts[:2].tolist() == [41, 5]
    assert columns.stops[:2].tolist() == columns.draws[:2].tolist() == [42, 6]
    assert columns.bounds[:3].tolist() == columns.wanted[:3].tolist() == [0, 1, 2]
    assert described.draws_from.tolist() == [0, 1]
    assert (described.prefills, described.asked, described.logits) == ((), (), ())
    assert described.launch(()).is_decode
    assert described.launch(()).max_len == 42


def test_longer_slices_follow_the_decodes_and_are_known_as_runs():
    columns = Columns.poisoned(4)

    described = describe((*DECODES, CHUNK, PROMPT), [0, 1, 2, 3], columns, set())

    assert columns.bounds.tolist() == [0, 1, 2, 32, 37]
    assert columns.wanted.tolist() == [0, 1, 2, 2, 3]
    assert columns.draws.tolist() == [42, 6, -1, 9]
    assert (described.rows, described.wanted, described.num_decodes) == (37, 3, 2)
    assert described.prefills == (Run(2, 32, 2, 0, 30), Run(32, 37, 3, 4, 9))
    assert described.draws_from[[0, 1, 3]].tolist() == [0, 1, 2]
    assert described.asked == ()


def test_a_chunk_of_one_row_is_no_decode():
    parts = (DECODES[0], Slice(9, 3, 4, 4, False))
    columns = Columns.poisoned(2)

    described = describe(parts, [0, 1], columns, set())

    assert described.num_decodes == 2
    assert described.wanted == 1
    assert not described.launch(()).is_decode


def test_rows_about_the_prompt_come_before_the_one_to_draw_from():
    parts = (Slice(7, 0, 5, 1, True), DECODES[1], Slice(9, 0, 3, 0, False))
    columns = Columns.poisoned(3)

    described = describe(parts, [0, 1, 2], columns, {7})

    assert columns.wanted.tolist() == [0, 4, 5, 8]
    assert described.asked == (Asked(0, 0, 3, True), Asked(2, 4, 7, False))
    assert described.logits == (0, 1, 2, 3, 5, 6, 7)
    assert columns.draws.tolist() == [-1, 6, -1]


@pytest.mark.parametrize("by_host", [False, True])
def test_the_host_draws_tokens_of_the_requests_it_is_told(by_host):
    columns = Columns.poisoned(2)

    described = describe(DECODES, [0, 1], columns, {9, *([7] if by_host else [])})

    assert [asked.draws for asked in described.asked] == [True] * by_host
    assert columns.draws.tolist() == [-1 if by_host else 42, 6]


def test_columns_are_read_only_once():
    columns = Columns.poisoned(2)
    described = describe(DECODES, [0, 1], columns, set())

    columns.wanted[:] = 0

    np.testing.assert_array_equal(described.draws_from, [0, 1])
