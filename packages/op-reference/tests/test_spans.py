import numpy as np
import pytest
from spaninfer_op_reference import append, gather_spans

S, L, K, D = 6, 4, 2, 3


@pytest.mark.parametrize("length", [0, 1, 4, 5, 11])
def test_what_is_appended_in_pieces_is_gathered_in_order(length):
    rows = np.random.default_rng(0).normal(size=(11, K, D))
    cache, table = np.full((S, L, K, D), np.nan), np.array([4, 0, 5])

    for positions in np.split(np.arange(11), [1, 6, 7]):
        append(cache, rows[positions], table, positions)

    np.testing.assert_array_equal(gather_spans(cache, table, length), rows[:length])


def test_spans_of_others_are_not_touched():
    cache = np.zeros((S, L, K, D))

    append(cache, np.ones((5, K, D)), np.array([3, 1]), np.arange(5))

    assert (cache[[0, 2, 4, 5]] == 0).all()
    assert (cache[1, 1:] == 0).all()
