"""Numbers of rows that tiles are chosen for, so that few tiles serve all of them. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from typing import Final

FEW_ROWS: Final = 64  # of x: beyond, reading x costs as much as reading the weight
BUCKETS: Final[tuple[int, ...]] = (
    *range(1, FEW_ROWS),
    *range(FEW_ROWS, 512, 16),
    *range(512, 8192 + 1, 64),
)


def bucket_of(rows: int) -> int:
    """Return the smallest bucket that holds the rows, or the largest.

    >>> bucket_of(63), bucket_of(65), bucket_of(513), bucket_of(10_000)
    (63, 80, 576, 8192)
    """
    return BUCKETS[bisect_left(BUCKETS, rows, hi=len(BUCKETS) - 1)]


def rows_of_tiles(choose: Callable[[int], Hashable]) -> tuple[int, ...]:
    """Return numbers of rows for which `choose` returns, between them, all it ever does."""
    found: dict[Hashable, int] = {}
    for rows in BUCKETS:
        found.setdefault(choose(rows), rows)
    return tuple(found.values())
