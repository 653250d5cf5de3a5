"""Memory that begins with a cache line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.vectors import intrinsic

CACHE_LINE = 64


def aligned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an uninitialised array; a load of up to a line's bytes from its rows spans one line,
    not two, where rows are whole lines.
    """
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(num_bytes + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    array: NDArray[Any] = memory[start : start + num_bytes].view(dtype).reshape(shape)
    return array


def whole_lines(num_bytes: int) -> int:
    """Return the bytes of as many cache lines as hold that many bytes.

    >>> whole_lines(1), whole_lines(128)
    (64, 128)
    """
    return -(-num_bytes // CACHE_LINE) * CACHE_LINE


def odd_lines(num_bytes: int) -> int:
    """Return the bytes of an odd number of cache lines, the fewest that hold that many; 0 for 0.

    Rows that far apart lie in as many sets of a cache as they are. Two by two tiles of AMX whose
    rows were 28 lines apart took 130 to 155 cycles for what takes 105 to 120 at 29 (a Xeon).

    >>> odd_lines(64), odd_lines(65), odd_lines(0)
    (64, 192, 0)
    """
    return 0 if num_bytes == 0 else (-(-num_bytes // CACHE_LINE) | 1) * CACHE_LINE


@dataclass(frozen=True, slots=True)
class StackBytes(Constant):
    """So many bytes of a kernel's stack."""

    num_bytes: int


@intrinsic
def stack(_context: Any, room: Any) -> Any:
    """Return the address of a room on the stack; every place in the code that says so has its own.

    It holds anything. It lasts until the function returns, and what that is compiled into.
    """

    def emit(_context: Any, b: Any, _signature: Any, _arguments: Any) -> Any:
        # Numba's own `alloca_once` fills with zeros, as an array that LLVM takes apart: a store for
        # every byte. Of 10 KB for tiles that were seven of nine seconds of compiling.
        with b.goto_entry_block():
            place = b.alloca(ir.ArrayType(v.I8, room.value.num_bytes))
        place.align = CACHE_LINE
        return b.ptrtoint(place, v.I64)

    return types.int64(room), emit
