"""Scores as weights of bfloat16, where each query sees some keys, against a softmax in float64."""

import ml_dtypes
import numpy as np
import pytest
from numba import njit
from spaninfer_kernels_cpu.attention.attend_block import Block, Scratch, Softmax, Task
from spaninfer_kernels_cpu.attention.score_vectors import NOTHING_SEEN, TOGETHER
from spaninfer_kernels_cpu.attention.seen_weights import (
    BLOCK_KEYS,
    STEP_KEYS,
    Rows,
    weigh_seen,
)
from spaninfer_kernels_cpu.codegen.isa_level import features

SPARE = 4

pytestmark = pytest.mark.skipif(
    "avx512bf16" not in features(), reason="this CPU has no instruction that rounds to bfloat16"
)


@njit
def weigh(rows, block, task, softmax, scores, peak, total, kept):
    scratch = Scratch(
        0, scores.ctypes.data, 0, peak.ctypes.data, total.ctypes.data, kept.ctypes.data, 0, 0, 0, 0
    )
    for row in range(0, rows.num_queries, TOGETHER):
        weigh_seen(row, rows, block, task, softmax, scratch)


@pytest.mark.parametrize("poison", [np.nan, 1e30])
@pytest.mark.parametrize("window", [0, 1, 20, 150])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize(("position", "ahead"), [(0, 0), (40, 0), (127, 0), (200, 0), (90, 300)])
def test_weights_are_those_of_a_softmax_of_what_a_query_sees(
    position, ahead, heads, window, poison
):
    """Two blocks, the second of 77 tokens; what a query does not see, and the rows behind the last
    query, are poisoned.
    """
    queries = 30
    rng = np.random.default_rng(position)
    softmax = Softmax(np.float32(1), np.float32(0), window, 0, 0, False, ahead, 0, 0)
    task = Task(0, 0, heads, queries, position, 0, 205, 0, -1, 0)
    peak, total, kept = (np.full(queries + SPARE, np.nan, np.float32) for _ in range(3))
    peak[:queries], total[:queries] = NOTHING_SEEN, 0
    now = position + np.arange(queries)[:, None] // heads
    keys = np.arange(205)
    sees = (keys <= now + ahead) & ((keys > now - window) | (window == 0))
    exact = np.where(sees, rng.standard_normal((queries, 205)) * 20, -np.inf).astype(np.float32)
    for begin, count in ((0, BLOCK_KEYS), (BLOCK_KEYS, 77)):
        scores = np.full((queries + SPARE, BLOCK_KEYS), poison, np.float32)
        stop = -(-count // STEP_KEYS) * STEP_KEYS
        scores[:queries, :count] = np.where(sees, exact, poison)[:, begin : begin + count]
        before = peak[:queries].astype(np.float64)

        block, rows = Block(begin, count), Rows(0, queries, 0, stop)
        weigh(rows, block, task, softmax, scores, peak, total, kept)

        seen = exact[:, : begin + count].astype(np.float64)
        expected = np.maximum(seen.max(1), float(NOTHING_SEEN))
        np.testing.assert_array_equal(peak[:queries], expected.astype(np.float32))
        weights = np.exp(seen - expected[:, None])
        found = scores.view(ml_dtypes.bfloat16)[:queries, :stop].astype(np.float64)
        close = {"rtol": 2**-8 + 1e-4, "atol": 1e-37}
        np.testing.assert_allclose(found[:, :count], weights[:, begin:], **close)
        np.testing.assert_array_equal(found[:, :count][~sees[:, begin : begin + count]], 0)
        np.testing.assert_array_equal(found[:, count:], 0)
        np.testing.assert_allclose(total[:queries], weights.sum(1), rtol=2e-4)
        higher = before < expected
        left = np.exp(before - expected)
        np.testing.assert_allclose(kept[:queries][higher], left[higher], rtol=2e-4, atol=1e-37)
        same = ~higher & (expected > NOTHING_SEEN)
        np.testing.assert_array_equal(kept[:queries][same], 1)
