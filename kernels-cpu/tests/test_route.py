"""The choice of experts against its definition."""

import numpy as np
import pytest
import spaninfer_op_reference as op_reference
from numba import njit
from spaninfer_kernels_cpu.route_kernel import Room, Routing, route

CASES = [
    {"top_k": 1},
    {"top_k": 8, "normalise": True},
    {"top_k": 2, "scale": 2.5},
    {"top_k": 64},
    {"top_k": 6, "groups": 8, "group_topk": 3, "scale": 16.0},
    {"top_k": 8, "kind": "sigmoid", "normalise": True, "scale": 2.5, "groups": 8, "group_topk": 4,
     "group_score": "top2", "correct": True},
    {"top_k": 4, "kind": "sigmoid", "correct": True},
]  # fmt: skip


@njit
def over_rows(logits, routing, room, ids, weights):
    for row in range(len(logits)):
        route(logits[row], routing, room, ids[row], weights[row])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ids_and_weights_are_those_of_the_definition(case):
    how, rng = dict(case), np.random.default_rng(1)
    logits = (2 * rng.standard_normal((50, 64))).astype(np.float32)
    correction = rng.standard_normal(64).astype(np.float32) if how.pop("correct", False) else None
    expected = op_reference.route(logits.astype(float), correction=correction, **how)
    ids = np.full((50, how["top_k"]), -1, np.int32)
    weights = np.full(ids.shape, np.nan, np.float32)
    kinds = (np.float32, np.float32, np.int32, np.float32, np.float32, np.int32)

    over_rows(
        logits,
        Routing(
            how.get("kind") == "sigmoid",
            how.get("normalise", False),
            np.float32(how.get("scale", 1.0)),
            how.get("groups", 1),
            how.get("group_topk", 1),
            how.get("group_score") == "top2",
            0 if correction is None else correction.ctypes.data,
        ),
        Room(*(np.empty(64, kind) for kind in kinds)),
        ids,
        weights,
    )

    np.testing.assert_array_equal(ids, expected[0])
    np.testing.assert_allclose(weights, expected[1], rtol=2e-6)


def test_of_equal_scores_the_first_experts_are_chosen():
    ids, weights = np.empty((1, 3), np.int32), np.empty((1, 3), np.float32)
    kinds = (np.float32, np.float32, np.int32, np.float32, np.float32, np.int32)

    over_rows(
        np.zeros((1, 8), np.float32),
        Routing(False, True, np.float32(1), 1, 1, False, 0),
        Room(*(np.empty(8, kind) for kind in kinds)),
        ids,
        weights,
    )

    assert ids.tolist() == [[0, 1, 2]]
    np.testing.assert_allclose(weights, 1 / 3, rtol=1e-6)
