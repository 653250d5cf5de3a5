"""The plan of a step's attention: the items it is cut into, once per step and window, in a few µs.

An item is a run of neighbouring rows of one request, and the chunk of its tokens that they attend
in one go. A chunk is long where rows are many; where a request has more tokens than one chunk,
every item leaves a part for `merge_task`. What an item is depends on its request's rows alone,
neither on the number of threads nor on other requests, so results do not either.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.compiled import entry, make_ready
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import larger, read_index, smaller, write_index

Ints = NDArray[np.int32]

ITEM_NUMBERS: Final = 9
"""int32 numbers of an item: first row, row behind the last, request, position of the first row,
first token of the chunk, token behind its last, number of the first row's part (-1: no parts), in
how many chunks these rows attend (in the items of their other chunks 0), and how many tokens behind
its own each row sees at least."""

NO_END: Final = 2**31 - 1  # as many tokens behind its own as there are

QUERIES: Final = 64  # of an item and a key head; their scores and sums stay in the cache
# The same where all rows see all keys, so that none is multiplied in vain: keys are then loaded
# for more rows at a time. CPU time of 1,024 patches, 16 heads of 80 channels: 156 ms with 64,
# 115 with 128, 107 with 256, 98 by torch (EPYC with AVX2, 2026-11-23).
MAX_QUERIES: Final = 256
CHUNK: Final = 256  # tokens that one row attends in one go: two key heads fill 16 threads at 2048
CHUNK_PER_ROW: Final = 64  # and several rows, each: parts cost at most a few per cent of the keys


class PlanKind(NamedTuple):
    """The common part of the plans of one attention, whatever the step.

    `group`: query heads per key head; `window`: tokens that a query sees, its own included, 0 for
    all of them; `ahead`: how many more it sees behind its own, of those that are rows here. The
    windows may be `chunked`: see `Scores`. All rows of an item are of one chunk then, and its
    tokens begin where the chunk does, so that the kernel looks for no window. `queries`: of an item
    and a key head (`attend_call.item_queries`), if they do not all see the same.
    """

    group: int
    window: int = 0
    ahead: int = 0
    chunked: bool = False
    queries: int = QUERIES


def plan_attention(
    request: Ints, position: Ints, kind: PlanKind, until: Ints | None = None
) -> tuple[Ints, int]:
    """Return the items [N 9] of rows with request[T] and position[T], and how many parts in all.

    until[T]: the position behind the last that each row sees; None: its own. Where it lies further,
    neighbouring rows up to there see as far, as in a picture whose tokens see each other.
    """
    request, position = (np.ascontiguousarray(numbers, np.int32) for numbers in (request, position))
    ends = None if until is None else np.ascontiguousarray(until, np.int32)
    memory = PlanMemory(kind)
    ends_at = 0 if ends is None else ends.ctypes.data
    rows = PlanRows(request.ctypes.data, position.ctypes.data, ends_at, len(request))
    count, num_parts = memory.write(rows)
    return memory.items[:count], num_parts


class PlanRows(NamedTuple):
    """Addresses of the int32 numbers of `num_rows` rows, see `plan_attention`; 0: no `until`."""

    request: int
    position: int
    until: int
    num_rows: int


class PlanMemory:
    """Memory for the plans of one kind, one after the other.

    `address` is that of the items; they move where there are more than ever.
    """

    def __init__(self, kind: PlanKind) -> None:
        group, window, ahead, chunked, queries = map(int, kind)
        self._kind = group, window, ahead, chunked, queries
        self._reserve(0)

    @property
    def items(self) -> Ints:
        """The memory [room 9]; the first items are those of the latest plan."""
        return self._numbers[1:]

    def write(self, rows: PlanRows) -> tuple[int, int]:
        """Plan a step; return how many items there are, and how many parts."""
        while True:
            places = self._base, self.address, self._room
            count = _write_items(*rows, *self._kind, *places)
            if count <= self._room:
                return count, int(self._numbers[0, 0])
            self._reserve(2 * count)

    def _reserve(self, room: int) -> None:
        self._room = room
        self._numbers = np.empty(
            (1 + room, ITEM_NUMBERS), np.int32
        )  # the first row: how many parts
        self._base: int = self._numbers.ctypes.data
        self.address = self._base + self._numbers.strides[0]


def plan_selected(position: Ints, group: int, top_k: int) -> tuple[Ints, int]:
    """Return the items of rows that read selected keys: top_k of those they see, or all.

    An item is of one row, and its tokens are some of those selected, in their order.
    """
    rows = np.arange(len(position), dtype=np.int32)
    return plan_attention(rows, np.minimum(position, top_k - 1), PlanKind(group))


@cache
def make_planner_ready() -> None:
    """Compile the kernel that plans attention, or load it from the cache."""
    make_ready(_write_items)


@entry
def _write_items(
    request: int,
    position: int,
    until: int,
    num_rows: int,
    group: int,
    window: int,
    ahead: int,
    chunked: int,
    queries: int,
    num_parts: int,
    items: int,
    room: int,
) -> int:
    """Write up to `room` items, and how many parts there are; return how many items there are."""
    start = number = parts = whole = 0
    while start < num_rows:
        if ahead > 0 and start >= whole:
            whole = _end_of_run(start, num_rows, request, position)
        first = read_index(position, start)
        end = read_index(until, start) if until != 0 else first + 1
        sees_all = window == 0 and (ahead == NO_END or end > first + 1)
        most = larger(1, (MAX_QUERIES if sees_all else queries) // group)
        room_left = smaller(most, window - first % window) if chunked else most
        last = smaller(num_rows, start + room_left)
        if end > first + 1:
            last = smaller(last, start + end - first)
        stop = _end_of_run(start, last, request, position)
        if until != 0 and end == first + 1:
            stop = _end_of_causal(start, stop, position, until)
        low = larger(0, first - window + 1) if window > 0 else 0
        high = read_index(position, stop - 1) + 1
        if ahead > 0:
            high = smaller(high + ahead, read_index(position, whole - 1) + 1)
        high = larger(high, end)
        chunk = larger(CHUNK, CHUNK_PER_ROW * (stop - start))
        low = first - first % window if chunked else low - low % chunk
        pieces = (high - low + chunk - 1) // chunk
        for piece in range(pieces):
            if number < room:
                item = items + number * ITEM_NUMBERS * 4
                write_index(item, 0, start)
                write_index(item, 1, stop)
                write_index(item, 2, read_index(request, start))
                write_index(item, 3, first)
                write_index(item, 4, low + piece * chunk)
                write_index(item, 5, smaller(high, low + (piece + 1) * chunk))
                write_index(item, 6, parts + piece * (stop - start) if pieces > 1 else -1)
                write_index(item, 7, pieces if piece == 0 else 0)
                write_index(item, 8, NO_END if end > first + 1 else 0)
            number += 1
        parts += pieces * (stop - start) if pieces > 1 else 0
        start = stop
    write_index(num_parts, 0, parts)
    return number


@device_function
def _end_of_run(start: int, last: int, request: int, position: int) -> int:
    """Return where the run of neighbouring positions of a request from `start` ends, or `last`."""
    stop = start + 1
    while (
        stop < last
        and read_index(request, stop) == read_index(request, start)
        and read_index(position, stop) == read_index(position, stop - 1) + 1
    ):
        stop += 1
    return stop


@device_function
def _end_of_causal(start: int, last: int, position: int, until: int) -> int:
    """Return where rows from `start` on see more than what lies before them, or `last`."""
    stop = start + 1
    while stop < last and read_index(until, stop) == read_index(position, stop) + 1:
        stop += 1
    return stop
