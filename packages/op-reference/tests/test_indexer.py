"""The indexer of sparse attention, against loops over the published formula."""

import numpy as np
import pytest
from spaninfer_op_reference import attend, attend_selected, index_scores, select_keys

T, N, H, D = 5, 17, 3, 8
POSITIONS = np.array([0, 2, 7, 15, 16])


def operands(seed=0):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=shape) for shape in ((T, H, D), (T, H), (N, D)))


def test_scores_are_sums_over_heads_of_weighted_dot_products_above_zero():
    query, weights, keys = operands()

    scores = index_scores(query, weights, keys)

    for t in range(T):
        for s in range(N):
            products = [sum(map(float, query[t, h] * keys[s])) for h in range(H)]
            wanted = sum(float(weights[t, h]) * max(products[h], 0.0) for h in range(H))
            assert scores[t, s] == pytest.approx(wanted)


@pytest.mark.parametrize("top_k", [1, 4, 16, 17, 100])
def test_a_query_reads_the_best_of_the_keys_up_to_its_own(top_k):
    query, weights, keys = operands()
    scores = index_scores(query, weights, keys)

    selected = select_keys(query, weights, keys, POSITIONS, top_k)

    assert selected.shape == (T, min(top_k, N))
    for row, position, row_scores in zip(selected, POSITIONS, scores, strict=True):
        best = sorted(range(position + 1), key=lambda s, of=row_scores: -of[s])[:top_k]
        known = row[: len(best)].tolist()
        assert known == sorted(best)
        assert (row[len(best) :] == -1).all()


def test_of_equal_scores_the_lower_positions_are_selected():
    """Zeros of either sign are equal: a negative weight makes one of a product below zero."""
    query, keys = np.array([[[1.0], [-1.0]]]), np.array([[0.0], [1.0], [0.0], [-1.0], [1.0], [0.0]])
    weights = np.array([[1.0, -0.0]])  # scores 0, 1, 0, -0, 1, 0

    (selected,) = select_keys(query, weights, keys, np.array([5]), 4)

    assert selected.tolist() == [0, 1, 2, 4]


def test_scores_that_are_no_number_come_last():
    query, weights = np.ones((1, 1, 1)), np.ones((1, 1))
    keys = np.array([[np.nan], [2.0], [np.nan], [3.0], [1.0], [np.nan]])

    (three,) = select_keys(query, weights, keys, np.array([4]), 3)
    (four,) = select_keys(query, weights, keys, np.array([4]), 4)

    assert three.tolist() == [1, 3, 4]
    assert four.tolist() == [0, 1, 3, 4]


def test_attention_to_selected_keys_is_attention_where_there_are_no_others():
    rng = np.random.default_rng(1)
    query, keys, values = (rng.normal(size=(N, heads, D)) for heads in (4, 2, 2))
    selected = np.array([0, 3, 4, 11])
    scale = {"scale": 0.3}

    sparse = attend_selected(query[:1], keys, values, np.array([[*selected, -1, -1]]), **scale)

    alone = attend(
        query[:1], keys[selected], values[selected], np.array([9]), np.arange(4), **scale
    )
    np.testing.assert_allclose(sparse, alone, rtol=1e-12)


def test_with_all_keys_selected_it_is_dense_attention_to_the_bit():
    rng = np.random.default_rng(2)
    query, keys, values = (rng.normal(size=(N, heads, D)) for heads in (4, 1, 1))
    places = np.arange(N)
    every = np.where(places > places[:, None], -1, places)

    sparse = attend_selected(query, keys, values, every, scale=0.3)

    assert (sparse == attend(query, keys, values, places, places, scale=0.3)).all()
