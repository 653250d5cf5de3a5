"""A unit-stride view of the numbers behind an address, for use inside kernels.

A row of an array that may be strided has no known inner stride, and LLVM leaves loops over it
scalar; a view made from the row's address is contiguous by type. It also costs less code than a
slice, which handles negative bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from spaninfer_kernels_cpu.in_kernel import in_kernel


@in_kernel
def numbers_at(address: int, count: int, dtype: type[Any]) -> NDArray[Any]:
    """Return `count` numbers from `address` (bytes). The caller keeps the memory alive."""
    view: NDArray[Any] = carray(_pointer(address, dtype), (count,))  # type: ignore[call-arg]
    return view


@in_kernel
def floats_at(address: int, count: int) -> NDArray[np.float32]:
    """Return `count` float32 numbers from `address` (bytes). The caller keeps the memory alive."""
    view: NDArray[np.float32] = numbers_at(address, count, np.float32)
    return view


@intrinsic
def _pointer(_context: Any, _address: Any, dtype: Any) -> Any:
    """Return an int64 address as a pointer to numbers of a type."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(dtype.dtype)(types.int64, dtype), emit  # type: ignore[no-untyped-call]
