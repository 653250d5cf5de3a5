"""The threads that turn bodies into requests, so that a long one does not hold up the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from spaninfer_serving.problems import busy

T = TypeVar("T")

# Parsing and tokenising take about 1 µs per byte (5 MB of words: 4 s on one core). A body up to
# this size costs less than a millisecond in place, and the way to a thread and back 0.1 ms.
IN_PLACE_BYTES = 1 << 10

NUM_THREADS = 2
MAX_WAITING = 64  # bodies; each may be as large as the limit


class Readers:
    """Two threads, and a bounded number of bodies that wait for them."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(NUM_THREADS, "spaninfer-reader")
        self._num_inside = 0

    async def run(self, num_bytes: int, work: Callable[[], T]) -> T:
        """Return what the work returns; Problem 429 while too many wait."""
        if num_bytes <= IN_PLACE_BYTES:
            return work()
        if self._num_inside >= MAX_WAITING:
            raise busy(f"{self._num_inside} large requests are being read; try again later")
        self._num_inside += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._num_inside -= 1
