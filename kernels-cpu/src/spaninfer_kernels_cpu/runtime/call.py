"""Calls of kernels with their arguments, and scripts of calls: what a compiled step consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.arguments import Arguments, packed, struct_bytes
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.kernel import Kernel, address_of, arguments_of
from spaninfer_kernels_cpu.errors import demand_size

TOKENS, LOGITS, ITEMS = 0, 1, 2
"""What a call may be cut by, as indices of a step's counts: its tokens, those whose logits are
computed, and from 2 on the items of its plans of attention."""

MAX_COUNTS = 16

MAX_SIZE = 1 << 40
"""No size that is given to a kernel is larger: their products with others stay far below 2**63."""

NUMBERS_PER_TASK = 4096  # of cheap arithmetic, about 1 µs: less is not worth another thread

ALL_TOKENS = 1 << 40  # of one task, or of tasks that share them by their number: those of any step


@dataclass(frozen=True, slots=True)
class Matrix(Arguments):
    """The address of a row-major matrix of float32, and the bytes from one row to the next.

    The numbers of a row lie side by side; a row may be a part of a longer one.
    """

    address: int
    stride: int

    @classmethod
    def of(cls, array: NDArray[np.float32]) -> Matrix:
        """Return where an array lies, whose first axis counts rows; the caller keeps it alive."""
        return cls(array.ctypes.data, array.strides[0])


@device_function
def row_at(matrix: Matrix, row: int) -> int:
    """Return the address of a row, inside kernels."""
    return matrix.address + row * matrix.stride


def address_or_zero(array: NDArray[np.float32] | None) -> int:
    """Return an array's address as kernels take one that may be left out: 0 where there is none."""
    return 0 if array is None else array.ctypes.data


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel with its arguments, and how its work is cut: ceil(n / tokens_per_task) * tasks.

    n is one of the step's counts. Which task does what is the kernel's business.
    """

    kernel: Kernel
    arguments: Arguments
    tasks: int = 1
    tokens_per_task: int = 1
    count: int = TOKENS


@dataclass(frozen=True, slots=True)
class CallHeader(Arguments):
    """A call as the threads that run a script read it; kernel and arguments are addresses."""

    kernel: int
    arguments: int
    tasks: int
    tokens_per_task: int
    count: int


HEADER_BYTES = struct_bytes(CallHeader)


def tokens_per_task(width: int) -> int:
    """Return how many tokens a task of cheap arithmetic has, for that many numbers of each.

    SizeError for none.
    """
    demand_size("numbers of a row", width, 1, MAX_SIZE)
    return max(1, NUMBERS_PER_TASK // width)


class Script:
    """Calls in order, in memory that a thread pool reads; their kernels are compiled, or loaded.

    TypeError for arguments that are not those of their kernel.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = tuple(calls)
        structs = [_packed(call) for call in calls]
        self._arguments = np.frombuffer(b"".join(structs), np.uint8)
        start: int = self._arguments.ctypes.data
        headers = []
        for call, struct in zip(calls, structs, strict=True):
            cut = call.tasks, call.tokens_per_task, call.count
            headers.append(packed(CallHeader(address_of(call.kernel), start, *cut)))
            start += len(struct)
        self._headers = np.frombuffer(b"".join(headers), np.uint8)
        self.address: int = self._headers.ctypes.data

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self.calls)


def _packed(call: Call) -> bytes:
    taken, given = arguments_of(call.kernel), type(call.arguments)
    if taken is not given:
        raise TypeError(f"{call.kernel.__qualname__} takes {taken.__name__}, got {given.__name__}")
    return packed(call.arguments)
