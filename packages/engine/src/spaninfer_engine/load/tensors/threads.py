"""Rows of large arrays by several threads: numpy lets go of the interpreter in its loops."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_MAX_THREADS = 8


def in_threads(work: Callable[[slice], None], rows: int, step: int) -> None:
    """Call `work` for slices of at most `step` rows that cover all; raises what it raises."""
    slices = [slice(start, min(rows, start + step)) for start in range(0, rows, step)]
    if len(slices) < 2:
        for some in slices:
            work(some)
        return
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as threads:
        list(threads.map(work, slices))
