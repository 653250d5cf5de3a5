"""Scores as weights of bfloat16 against a softmax in float64."""

import ml_dtypes
import numpy as np
import pytest
from numba import njit
from spaninfer_kernels_cpu.attention.attend_block import Scratch
from spaninfer_kernels_cpu.attention.pair_weights import weigh_as_pairs
from spaninfer_kernels_cpu.codegen.isa_level import features

QUERIES, SPARE = 7, 4

pytestmark = pytest.mark.skipif(
    "avx512bf16" not in features(), reason="this CPU has no instruction that rounds to bfloat16"
)


@njit
def weigh(num_queries, count, scores, peak, total, kept):
    scratch = Scratch(
        0, scores.ctypes.data, 0, peak.ctypes.data, total.ctypes.data, kept.ctypes.data, 0, 0, 0, 0
    )
    weigh_as_pairs(num_queries, count, scratch)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 32, 33, 48, 49, 63, 64])
def test_weights_of_two_blocks_are_those_of_a_softmax(count):
    """What no query sees, and the rows behind the last query, are poisoned."""
    rng = np.random.default_rng(count)
    peak, total, kept = (np.full(QUERIES + SPARE, np.nan, np.float32) for _ in range(3))
    peak[:QUERIES], total[:QUERIES] = -3e38, 0
    seen = np.empty((QUERIES, 0))
    for _ in range(2):
        scores = np.full((QUERIES + SPARE, 64), np.nan, np.float32)
        scores[:QUERIES, :count] = rng.standard_normal((QUERIES, count)) * [[3], *[[30]] * 6]
        block = scores[:QUERIES, :count].astype(np.float64)
        before = peak[:QUERIES].astype(np.float64)

        weigh(QUERIES, count, scores, peak, total, kept)

        seen = np.concatenate([seen, block], 1)
        expected = seen.max(1)
        np.testing.assert_array_equal(peak[:QUERIES], expected)
        close = {"rtol": 2**-8 + 1e-4, "atol": 1e-37}
        weights = scores.view(ml_dtypes.bfloat16)[:QUERIES, :count].astype(np.float64)
        np.testing.assert_allclose(weights, np.exp(block - expected[:, None]), **close)
        sums = np.exp(seen - expected[:, None]).sum(1)
        np.testing.assert_allclose(total[:QUERIES], sums, rtol=2e-4)
        np.testing.assert_allclose(kept[:QUERIES], np.exp(before - expected), rtol=2e-4, atol=1e-37)
