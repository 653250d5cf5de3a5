"""DLPack's capsules, read and made through ctypes (dlpack.h, version 0.8: "dltensor")."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np

from spaninfer_kernel_launch.errors import DTypeError

ON_GPU: Final = 2  # kDLCUDA

_NAME = b"dltensor"


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Tensor(ctypes.Structure):
    """DLTensor: where an array lies."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLManagedTensor: a tensor, and how its reader lets go of it."""

    _fields_ = (
        ("tensor", Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
    )


_DTYPES: dict[tuple[int, int], np.dtype[Any]] = {
    **{(0, 8 * size): np.dtype(f"i{size}") for size in (1, 2, 4, 8)},
    **{(1, 8 * size): np.dtype(f"u{size}") for size in (1, 2, 4, 8)},
    **{(2, 8 * size): np.dtype(f"f{size}") for size in (2, 4, 8)},
    (4, 16): np.dtype(ml_dtypes.bfloat16),
    (6, 8): np.dtype(bool),
    (10, 8): np.dtype(ml_dtypes.float8_e4m3fn),
    (12, 8): np.dtype(ml_dtypes.float8_e5m2),
    (14, 8): np.dtype(ml_dtypes.float8_e8m0fnu),
}
"""Type code and bits of dlpack.h."""

_CODES = {dtype: code for code, dtype in _DTYPES.items()}

_pointer_of: Callable[[object, bytes], int] = ctypes.PYFUNCTYPE(
    ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p
)(("PyCapsule_GetPointer", ctypes.pythonapi))

# The capsule as an address: while it is being collected it must not become a Python object again.
_is_unread: Callable[[int, bytes], int] = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p
)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer_at: Callable[[int, bytes], int] = ctypes.PYFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p
)(("PyCapsule_GetPointer", ctypes.pythonapi))
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule: Callable[..., object] = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor
)(("PyCapsule_New", ctypes.pythonapi))


def tensor_of(capsule: object) -> Tensor:
    """Return the tensor of a capsule that has not been read yet."""
    return ctypes.cast(_pointer_of(capsule, _NAME), ctypes.POINTER(Tensor)).contents


def dtype_of(given: Any) -> np.dtype[Any]:
    """Return the numpy or ml_dtypes name of an element type. Raises DTypeError without one."""
    if given.lanes == 1 and (dtype := _DTYPES.get((given.code, given.bits))):
        return dtype
    raise DTypeError(
        f"no kernel takes elements of DLPack type code {given.code}, {given.bits} bits, "
        f"{given.lanes} lanes"
    )


_lent: dict[int, tuple[object, ...]] = {}
"""By address of a managed tensor: the objects that must live until its reader releases it."""


def _let_go(address: int) -> None:
    """The callback of a reader that no longer needs the memory."""
    del _lent[address]


def _drop(capsule: int) -> None:
    """The callback of Python for a collected capsule; readers rename those they have read."""
    if _is_unread(capsule, _NAME):
        _let_go(_pointer_at(capsule, _NAME))


_deleter = _Deleter(_let_go)
_destructor = _Destructor(_drop)


def lend(
    pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any], gpu: int, owner: object
) -> object:
    """Return a capsule about a contiguous array on a GPU; `owner` lives until it is let go of."""
    code, bits = _CODES[dtype]
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    strides = (ctypes.c_int64 * len(shape))(*dense_strides(shape))
    managed = _Managed(
        Tensor(pointer, ON_GPU, gpu, len(shape), _DataType(code, bits, 1), sizes, strides, 0),
        None,
        _deleter,
    )
    address = ctypes.addressof(managed)
    _lent[address] = (managed, sizes, strides, owner)
    return _new_capsule(address, _NAME, _destructor)


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous array."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)
