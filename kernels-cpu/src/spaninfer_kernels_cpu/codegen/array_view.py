"""A unit-stride view of the numbers behind an address, for use inside kernels.

A row of an array that may be strided has no known inner stride, and LLVM leaves loops over it
scalar; a view made from the row's address is contiguous by type. It also costs less code than a
slice, which handles negative bounds.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.np import arrayobj

from spaninfer_kernels_cpu.codegen.vectors import intrinsic

_populate: Any = arrayobj.populate_array
_packed: Any = cgutils.pack_array

# Intrinsics: `carray` does the same in 0.1 s of compiling per type and kernel.


@intrinsic
def numbers_at(_context: Any, _address: Any, _count: Any, dtype: Any) -> Any:
    """Return `count` numbers from `address` (bytes). The caller keeps the memory alive."""
    return _view(dtype.dtype, dtype)


@intrinsic
def floats_at(_context: Any, _address: Any, _count: Any) -> Any:
    """Return `count` float32 numbers from `address` (bytes). The caller keeps the memory alive."""
    return _view(types.float32)


def _view(number: Any, *dtype: Any) -> Any:
    """Return the signature and the emitter of what makes an array of numbers."""
    kind = types.Array(number, 1, "C")

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        address, count = arguments[:2]
        array = context.make_array(kind)(context, b)
        size = context.get_constant(types.intp, context.get_abi_sizeof(array.data.type.pointee))
        _populate(
            array,
            data=b.inttoptr(address, array.data.type),
            shape=_packed(b, [count]),
            strides=_packed(b, [size]),
            itemsize=size,
            meminfo=None,
        )
        return array._getvalue()

    return kind(types.int64, types.int64, *dtype), emit
