"""Matrix products in float32: BLAS on one thread each, large ones split over threads of ours.

BLAS's own threads spin while they wait for each other. On a machine where something else runs as
well that costs more than it gains: the bundled model decoded 64 tokens per second with two BLAS
threads beside a busy process, and 552 with one (8 requests, two cores, 2026-11-21). Ours sleep.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from spaninfer_kernels_cpu import usable_cpus
from threadpoolctl import threadpool_limits

Array = NDArray[np.float32]

SPLIT_FROM = 1 << 23  # multiply-adds, about 0.3 ms on one core; handing a part over takes 0.05 ms


class Products:
    """x @ weight.T on `num_threads` threads.

    From the first one on, BLAS runs on one thread in the whole process.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        _limit_blas()
        self._num_threads = usable_cpus() if num_threads is None else num_threads
        self._pool = ThreadPoolExecutor(max(1, self._num_threads - 1), "spaninfer-products")

    def __call__(self, x: Array, weight: Array) -> Array:
        """Return [T O]: x[T C] @ weight[O C].T."""
        if self._num_threads == 1 or len(x) * weight.size < SPLIT_FROM:
            whole: Array = x @ weight.T
            return whole
        y = np.empty((len(x), len(weight)), np.float32)
        bounds = np.linspace(0, len(weight), self._num_threads + 1, dtype=int).tolist()
        first, *others = [
            (x, weight[start:stop], y[:, start:stop]) for start, stop in pairwise(bounds)
        ]
        running = [self._pool.submit(_multiply, *part) for part in others]
        _multiply(*first)
        for each in running:
            each.result()
        return y


def _multiply(x: Array, weight: Array, out: Array) -> None:
    """Write x @ weight.T into out."""
    np.matmul(x, weight.T, out=out)


@cache
def _limit_blas() -> threadpool_limits:
    """Limit BLAS once; the limits object is kept, because it would undo itself when deleted."""
    return threadpool_limits(1, user_api="blas")
