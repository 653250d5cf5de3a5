"""Where values lie while calls are written down: rows in buffers that are used again and again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spaninfer_kernels_cpu import attention
from spaninfer_kernels_cpu.attend_call import Plan
from spaninfer_kernels_cpu.call import ITEMS, MAX_COUNTS, ROWS, WANTED, Call, Rows

from spaninfer_engine.ops.step import SpanCache, Step

Floats = NDArray[np.float32]

MAX_GROUPS = MAX_ROPES = 16
MAX_PLANS = MAX_COUNTS - ITEMS

# Numbers of words: token ids, positions, requests, places, wanted rows; then pairs per group, …
_TABLES = 5
_ANGLES = _TABLES + 2 * MAX_GROUPS
_PLANS = _ANGLES + 2 * MAX_ROPES


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a program: for every row of the step, or every wanted one, numbers [*shape].

    They are columns [first, first + size) of a buffer [capacity, width]; columns of one row lie
    side by side, those of other values beside them.
    """

    buffer: Floats
    first: int
    shape: tuple[int, ...]
    wanted: bool

    @property
    def size(self) -> int:
        """Numbers of a row."""
        return math.prod(self.shape)

    @property
    def rows(self) -> Rows:
        """Where the rows lie, as kernels are told."""
        return Rows(self.buffer.ctypes.data + 4 * self.first, self.buffer.strides[0])

    @property
    def count(self) -> int:
        """Which of the step's counts is the number of rows."""
        return WANTED if self.wanted else ROWS

    def view(self, num_rows: int) -> Floats:
        """Return the first rows as an array [num_rows, *shape] on this memory."""
        columns = self.buffer[:num_rows, self.first : self.first + self.size]
        return columns.reshape(num_rows, *self.shape)

    def part(self, first: int, shape: tuple[int, ...]) -> Value:
        """Return columns of the value, from `first` on, as a value of this shape."""
        return Value(self.buffer, self.first + first, shape, self.wanted)

    def cut(self, sizes: Sequence[int]) -> tuple[Value, ...]:
        """Return columns side by side, from the first on, as values of these sizes."""
        starts = np.cumsum([0, *sizes]).tolist()
        return tuple(self.part(start, (size,)) for start, size in zip(starts, sizes, strict=False))


class Inputs:
    """What a step brings with it, at addresses that never change: int64 words that hold addresses.

    Kernels are told the address of a word. Arrays are kept alive until the next step's take over.
    """

    def __init__(self) -> None:
        self._words = np.zeros(_PLANS + 2 * MAX_PLANS, np.int64)
        self._step: Step[Any] | None = None
        self._kept: list[NDArray[Any]] = []
        self._plans: dict[tuple[int, int, int], int] = {}  # group, window, part bytes: its number
        self._counts: list[int] = []
        self.token_ids, self.position, self.request, self.places, self.wanted = (
            self._word(number) for number in range(_TABLES)
        )

    def table(self, group: int) -> tuple[int, int]:
        """Return the words of a cache group's span tables and of their width."""
        return self._word(_TABLES + 2 * group), self._word(_TABLES + 2 * group + 1)

    def angles(self, rope: int) -> tuple[int, int]:
        """Return the words of the cosines and the sines of a rotary embedding."""
        return self._word(_ANGLES + 2 * rope), self._word(_ANGLES + 2 * rope + 1)

    def plan(self, group: int, window: int, row_bytes: int) -> Plan:
        """Return how attention with so many query heads per key head is cut from now on.

        `row_bytes`: of the parts that one row leaves.
        """
        number = self._plans.setdefault((group, window, row_bytes), len(self._plans))
        assert number < MAX_PLANS
        items, parts = (self._word(_PLANS + 2 * number + which) for which in range(2))
        return Plan(ITEMS + number, items, parts)

    def fill(self, step: Step[Any]) -> None:
        """Have the words say where this step's arrays are."""
        assert len(step.tables) <= MAX_GROUPS
        assert len(step.rotations) <= MAX_ROPES
        self._step, self._kept = step, []
        one = (step.token_ids, step.position, step.request, step.positions[0], step.wanted)
        for number, array in enumerate(one):
            self._put(number, np.ascontiguousarray(array, np.int32))
        for group, table in enumerate(step.tables):
            self._put(_TABLES + 2 * group, table)
            self._words[_TABLES + 2 * group + 1] = table.shape[1]
        for rope, rotation in enumerate(step.rotations):
            for which, part in enumerate(rotation):
                self._put(_ANGLES + 2 * rope + which, np.ascontiguousarray(part, np.float32))
        self._counts = [step.num_tokens, len(step.wanted)]

    def counts(self) -> list[int]:
        """Return the counts of the step, after making the plans that are still missing."""
        step = self._step
        assert step is not None
        for (group, window, row_bytes), number in self._plans.items():
            if len(self._counts) == ITEMS + number:
                items, parts = attention.plan_of(step.request, step.position, group, window)
                self._put(_PLANS + 2 * number, items)
                self._put(_PLANS + 2 * number + 1, np.empty(parts * row_bytes, np.uint8))
                self._counts.append(len(items))
        return self._counts

    def _word(self, number: int) -> int:
        return self._words.ctypes.data + 8 * number

    def _put(self, number: int, array: NDArray[Any]) -> None:
        self._words[number] = array.ctypes.data
        self._kept.append(array)


class Recorder:
    """Calls written down so far, and the buffers of their values, for so many rows."""

    def __init__(
        self,
        inputs: Inputs,
        caches: Sequence[SpanCache[Any]],
        rotated: Sequence[int],
        *,
        rows: int,
        wanted: int,
    ) -> None:
        self.inputs, self.caches = inputs, caches
        self.rotated = rotated  # by rope: how many pairs of channels turn
        self.calls: list[Call] = []
        self._capacity = {False: rows, True: wanted}
        self._free: dict[tuple[bool, int], list[Floats]] = {}

    def new(self, *shape: int, wanted: bool) -> Value:
        """Return a value in memory that nothing else is in; its numbers are undefined."""
        width = max(1, math.prod(shape))
        free = self._free.setdefault((wanted, width), [])
        buffer = free.pop() if free else np.empty((self._capacity[wanted], width), np.float32)
        return Value(buffer, 0, shape, wanted)

    def give_back(self, buffer: Floats, *, wanted: bool) -> None:
        """Let other values have the memory of one that no later call reads."""
        self._free.setdefault((wanted, buffer.shape[1]), []).append(buffer)

    def scratch(self, row_bytes: int, *, wanted: bool) -> int:
        """Return the address of memory that the calls written next may use, and others later."""
        value = self.new(-(-row_bytes // 4), wanted=wanted)
        self.give_back(value.buffer, wanted=wanted)
        return value.buffer.ctypes.data

    @property
    def buffers(self) -> list[Floats]:
        """Every buffer that is free at present; at the end, all but those of results."""
        return [buffer for free in self._free.values() for buffer in free]
