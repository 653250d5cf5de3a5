"""Which pieces the attention of a step is cut into: made once per step and window, in a few µs.

An item is a run of neighbouring rows of one request, and the chunk of its tokens that they attend
in one go. A chunk is long where rows are many; where a request has more tokens than one chunk,
every item leaves a part for `merge_task`. What an item is depends on its request's rows alone,
neither on the number of threads nor on other requests, so results do not either.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.in_kernel import in_kernel

Ints = NDArray[np.int32]

ITEM_NUMBERS: Final = 8
"""int32 numbers of an item: first row, row behind the last, request, position of the first row,
first token of the chunk, token behind its last, number of the first row's part (-1: no parts), and
in how many chunks these rows attend (in the items of their other chunks 0)."""

QUERIES: Final = 64  # of an item and a key head; their scores and sums stay in the cache
CHUNK: Final = 256  # tokens that one row attends in one go: two key heads fill 16 threads at 2048
CHUNK_PER_ROW: Final = 64  # and several rows, each: parts cost at most a few per cent of the keys


@in_kernel
def rows_per_item(group: int) -> int:
    """Return the most rows of an item where `group` query heads share a key head."""
    return max(1, QUERIES // group)


@in_kernel
def count_items(request: Ints, position: Ints, group: int, window: int) -> tuple[int, int]:
    """Return how many items rows of request[T] and position[T] make, and how many parts."""
    return _walk(request, position, group, window, np.empty((0, ITEM_NUMBERS), np.int32))


@in_kernel
def plan_items(
    request: Ints, position: Ints, group: int, window: int, items: Ints
) -> tuple[int, int]:
    """Write the items [N 8] and return how many there are, and how many parts in all.

    `group`: query heads per key head; `window`: tokens that a query sees, its own included, 0 for
    all. `items` has room for as many as `count_items` says.
    """
    return _walk(request, position, group, window, items)


@in_kernel
def _walk(request: Ints, position: Ints, group: int, window: int, items: Ints) -> tuple[int, int]:
    start = number = parts = 0
    while start < len(request):
        stop = _end_of_run(start, rows_per_item(group), request, position)
        low = max(0, position[start] - window + 1) if window > 0 else 0
        high = position[stop - 1] + 1
        chunk = max(CHUNK, CHUNK_PER_ROW * (stop - start))
        low -= low % chunk
        pieces = (high - low + chunk - 1) // chunk
        for piece in range(pieces):
            if number < len(items):
                item = items[number]
                item[0], item[1] = start, stop
                item[2], item[3] = request[start], position[start]
                item[4], item[5] = low + piece * chunk, min(high, low + (piece + 1) * chunk)
                item[6] = parts + piece * (stop - start) if pieces > 1 else -1
                item[7] = pieces if piece == 0 else 0
            number += 1
        parts += pieces * (stop - start) if pieces > 1 else 0
        start = stop
    return number, parts


@in_kernel
def _end_of_run(start: int, most: int, request: Ints, position: Ints) -> int:
    """Return where the run of neighbouring positions of one request that begins at `start` ends."""
    stop = start + 1
    while (
        stop < min(len(request), start + most)
        and request[stop] == request[start]
        and position[stop] == position[stop - 1] + 1
    ):
        stop += 1
    return stop
