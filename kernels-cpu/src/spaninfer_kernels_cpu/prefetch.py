"""Cache lines asked for some microseconds before they are used, for Numba functions to call.

Addresses need not be ours: one that nothing lies at is ignored.
"""

from __future__ import annotations

from typing import Any

from numba.core import types

from spaninfer_kernels_cpu import vectors as v
from spaninfer_kernels_cpu.vectors import intrinsic


@intrinsic
def ask_to_read(_context: Any, _address: Any) -> Any:
    """Have the line at an address brought to the second cache."""
    return _asking(for_writing=False, nearness=2)


@intrinsic
def ask_to_write(_context: Any, _address: Any) -> Any:
    """Have the line at an address brought to the nearest cache, for this core alone."""
    return _asking(for_writing=True, nearness=3)


def _asking(*, for_writing: bool, nearness: int) -> Any:
    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        v.prefetch(b, *arguments, for_writing=for_writing, nearness=nearness)
        return context.get_dummy_value()

    return types.void(types.int64), emit
