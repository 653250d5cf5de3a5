"""The recorder: allocates buffers for values while calls are recorded, and reuses them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spaninfer_kernels_cpu import LOGITS, TOKENS, Call, Matrix, aligned

from spaninfer_engine.backends.cpu.inputs import Inputs
from spaninfer_engine.ops.step import SpanCache

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a program: for every row of the step, or every wanted one, numbers [*shape].

    They are columns [first, first + size) of a buffer [capacity, width]; columns of one row lie
    side by side, those of other values beside them.
    """

    buffer: Floats
    first: int
    shape: tuple[int, ...]
    per_logit: bool

    @property
    def size(self) -> int:
        """Numbers of a row."""
        return math.prod(self.shape)

    @property
    def rows(self) -> Matrix:
        """The location of the rows, in the form that kernels take."""
        return Matrix(self.buffer.ctypes.data + 4 * self.first, self.buffer.strides[0])

    @property
    def count(self) -> int:
        """The count of the step that is the number of rows."""
        return LOGITS if self.per_logit else TOKENS

    def view(self, num_rows: int) -> Floats:
        """Return the first rows as an array [num_rows, *shape] on this memory."""
        columns = self.buffer[:num_rows, self.first : self.first + self.size]
        return columns.reshape(num_rows, *self.shape)

    def part(self, first: int, shape: tuple[int, ...]) -> Value:
        """Return columns of the value, from `first` on, as a value of this shape."""
        return Value(self.buffer, self.first + first, shape, self.per_logit)

    def cut(self, sizes: Sequence[int]) -> tuple[Value, ...]:
        """Return columns side by side, from the first on, as values of these sizes."""
        starts = np.cumsum([0, *sizes]).tolist()
        return tuple(self.part(start, (size,)) for start, size in zip(starts, sizes, strict=False))


class Recorder:
    """Calls recorded so far, and the buffers of their values, for that many rows."""

    def __init__(
        self,
        inputs: Inputs,
        caches: Sequence[SpanCache[Any]],
        rotated: Sequence[int],
        *,
        rows: int,
        num_logits: int,
    ) -> None:
        self.inputs, self.caches = inputs, caches
        self.rotated = rotated  # by rope: how many pairs of channels turn
        self.calls: list[Call] = []
        self.buffers: list[Floats] = []  # all that calls may name
        self._capacity = {False: rows, True: num_logits}
        self._free: dict[tuple[bool, int], list[Floats]] = {}

    def new(self, *shape: int, per_logit: bool) -> Value:
        """Return a value in memory that nothing else is in; its numbers are undefined."""
        width = max(1, math.prod(shape))
        free = self._free.setdefault((per_logit, width), [])
        if not free:
            free.append(aligned((self._capacity[per_logit], width), np.float32))
            self.buffers.append(free[-1])
        return Value(free.pop(), 0, shape, per_logit)

    def give_back(self, buffer: Floats, *, per_logit: bool) -> None:
        """Let other values have the memory of one that no later call reads."""
        self._free.setdefault((per_logit, buffer.shape[1]), []).append(buffer)

    def capacity(self, *, per_logit: bool) -> int:
        """Return for how many rows there is memory."""
        return self._capacity[per_logit]

    def scratch(self, row_bytes: int, *, per_logit: bool) -> int:
        """Return the address of memory that the calls written next may use, and others later."""
        value = self.new(-(-row_bytes // 4), per_logit=per_logit)
        self.give_back(value.buffer, per_logit=per_logit)
        return value.buffer.ctypes.data
