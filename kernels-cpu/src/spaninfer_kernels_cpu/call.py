"""Calls of kernels (`kernel`) with their arguments: what a compiled step consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from spaninfer_kernels_cpu import vectors as v
from spaninfer_kernels_cpu.errors import demand_size
from spaninfer_kernels_cpu.kernel import Kernel, address_of
from spaninfer_kernels_cpu.vectors import intrinsic

Words = NDArray[np.int64]
Place = int
"""The address of an int64 that holds the address of what differs from step to step."""

ROWS, WANTED, ITEMS = 0, 1, 2
"""What a call may be cut by, as indices of a step's counts: its rows, those whose logits are
wanted, and from 2 on the items of its plans of attention."""

MAX_COUNTS = 16

MAX_SIZE = 1 << 40
"""No size that a kernel is told is larger: their products with others stay far below 2**63."""

NUMBERS_PER_TASK = 2048  # of cheap arithmetic, about 1 µs: less is not worth another thread

HEADER = 5  # int64 per call: function, address of its words, tasks, rows per task, which count


@dataclass(frozen=True, slots=True)
class Rows:
    """Where rows of float32 begin, and how many bytes lie from one to the next.

    The numbers of a row lie side by side; a row may be a part of a longer one.
    """

    address: int
    stride: int


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel with its arguments, and how its work is cut: ceil(n / rows_per_task) * tasks.

    n is one of the step's counts. Which task does what is the kernel's business. Arguments are
    whole numbers or, where they are Python floats, float32.
    """

    kernel: Kernel
    words: tuple[int | float, ...]
    tasks: int = 1
    rows_per_task: int = 1
    count: int = ROWS


def rows_per_task(width: int) -> int:
    """Return how many rows a task of cheap arithmetic has, for so many numbers in each.

    SizeError for none.
    """
    demand_size("numbers of a row", width, 1, MAX_SIZE)
    return max(1, NUMBERS_PER_TASK // width)


class Script:
    """Calls in order, in the memory that a team reads; their kernels are compiled, or loaded."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._words = np.array([_word(word) for call in calls for word in call.words], np.int64)
        starts = np.cumsum([0, *(len(call.words) for call in calls)])
        headers = [
            (
                address_of(call.kernel),
                self._words.ctypes.data + 8 * int(start),
                call.tasks,
                call.rows_per_task,
                call.count,
            )
            for call, start in zip(calls, starts, strict=False)
        ]
        self._headers = np.array(headers, np.int64).reshape(-1, HEADER)
        self.address: int = self._headers.ctypes.data

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self._headers)


def _word(value: int | float) -> int:
    """Return an argument as the int64 that a kernel reads."""
    return int(np.float32(value).view(np.int32)) if isinstance(value, float) else value


# ---- inside kernels ------------------------------------------------------------------------------
# Intrinsics, for Numba compiles other functions once for every number that stands in a call.


@intrinsic
def word(_context: Any, _words: Any, _number: Any) -> Any:
    """Return the argument of this number, a whole one."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        return _argument(b, v.I64, *arguments)

    return types.int64(types.int64, types.int64), emit


@intrinsic
def real(_context: Any, _words: Any, _number: Any) -> Any:
    """Return the argument of this number, a float32."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        return _argument(b, v.F32, *arguments)

    return types.float32(types.int64, types.int64), emit


@intrinsic
def held(_context: Any, _words: Any, _number: Any) -> Any:
    """Return the address that lies at the place which this argument names."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        return v.load(b, v.I64, _argument(b, v.I64, *arguments))

    return types.int64(types.int64, types.int64), emit


def _argument(b: v.Builder, kind: Any, words: v.Value, number: v.Value) -> v.Value:
    return v.load(b, kind, b.add(words, b.mul(number, v.I64(8))))
