"""The choice of experts against its definition."""

import numpy as np
import pytest
import spaninfer_op_reference as op_reference
from spaninfer_kernels_cpu.moe.route_call import Routes, route_call
from spaninfer_kernels_cpu.runtime.call import Matrix, Script
from spaninfer_kernels_cpu.runtime.thread_pool import shared_thread_pool

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
PLAIN = {"kind": "softmax", "normalise": False, "scale": 1.0, "groups": 1, "group_topk": 1,
         "group_score": "max"}  # fmt: skip


def routed(logits, how, correction=None):
    """Return ids and weights of logits that lie in longer rows."""
    rows, experts = logits.shape
    among = np.full((rows, experts + 5), np.nan, np.float32)
    among[:, 2:-3] = logits
    ids = np.full((rows, how["top_k"]), -1, np.int32)
    weights = np.full(ids.shape, np.nan, np.float32)
    call = route_call(
        Matrix(among.ctypes.data + 8, among.strides[0]),
        experts=experts,
        scores=PLAIN | how,
        correction=correction,
        out=Routes(ids.ctypes.data, weights.ctypes.data),
    )
    shared_thread_pool().run(Script([call]), [rows])
    return ids, weights


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ids_and_weights_are_those_of_the_definition(case):
    how, rng = dict(case), np.random.default_rng(1)
    logits = (2 * rng.standard_normal((50, 64))).astype(np.float32)
    correction = rng.standard_normal(64).astype(np.float32) if how.pop("correct", False) else None
    expected = op_reference.route(logits.astype(float), correction=correction, **how)

    ids, weights = routed(logits, how, correction)

    np.testing.assert_array_equal(ids, expected[0])
    np.testing.assert_allclose(weights, expected[1], rtol=2e-6)


def test_of_equal_scores_the_first_experts_are_chosen():
    ids, weights = routed(np.zeros((1, 8), np.float32), {"top_k": 3, "normalise": True})

    assert ids.tolist() == [[0, 1, 2]]
    np.testing.assert_allclose(weights, 1 / 3, rtol=1e-6)


@pytest.mark.parametrize("how", [CASES[1], CASES[4], {"top_k": 3, "kind": "sigmoid"}], ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_still_name_experts_and_concern_their_row_alone(how, bad):
    logits = np.random.default_rng(2).standard_normal((3, 64)).astype(np.float32)
    alone, _ = routed(logits[2:], how)
    logits[0], logits[1, 5] = bad, bad

    ids, weights = routed(logits, how)

    assert ((ids >= 0) & (ids < 64)).all()
    assert [len(set(row)) for row in ids.tolist()] == [how["top_k"]] * 3
    assert np.isnan(weights[0]).all() or how.get("kind") == "sigmoid"
    assert ids[2:].tolist() == alone.tolist()
