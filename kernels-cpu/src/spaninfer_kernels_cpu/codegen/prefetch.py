"""Software prefetch for Numba functions: cache lines requested microseconds before their use.

Addresses need not be ours: one that nothing lies at is ignored.
"""

from __future__ import annotations

from typing import Any

from numba.core import types

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import smaller
from spaninfer_kernels_cpu.codegen.memory import CACHE_LINE
from spaninfer_kernels_cpu.codegen.vectors import intrinsic

Lines = tuple[int, int]
"""Address of the first cache line, and how many."""


@intrinsic
def ask_to_read(_context: Any, _address: Any) -> Any:
    """Prefetch the line at an address into the L2 cache."""
    return _asking(for_writing=False, nearness=2)


@intrinsic
def ask_to_write(_context: Any, _address: Any) -> Any:
    """Prefetch the line at an address into the L1 cache, for writing."""
    return _asking(for_writing=True, nearness=3)


@device_function
def share_of(lines: Lines, count: int) -> int:
    """Return how many lines a share has where there are that many shares.

    Compilers do not see that none of no lines is none: one row of Q4_0, which asks for nothing,
    kept 30 of 442 instructions a group for it.
    """
    return (lines[1] + count - 1) // count if lines[1] > 0 else 0


@device_function
def ask_for_share(lines: Lines, number: int, at_once: int) -> None:
    """Prefetch share `number` of some lines, that many to each, into the L2 cache.

    All of them in one go fill the core's list of lines that it waits for, and what comes next waits
    with it.
    """
    for line in range(number * at_once, smaller((number + 1) * at_once, lines[1])):
        ask_to_read(lines[0] + line * CACHE_LINE)


@device_function
def part_of(lines: Lines, number: int, count: int) -> Lines:
    """Return part `number` of some lines that are cut into `count`."""
    each = share_of(lines, count)
    first = smaller(lines[1], number * each)
    return lines[0] + first * CACHE_LINE, smaller(each, lines[1] - first)


def _asking(*, for_writing: bool, nearness: int) -> Any:
    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        v.prefetch(b, *arguments, for_writing=for_writing, nearness=nearness)
        return context.get_dummy_value()

    return types.void(types.int64), emit
