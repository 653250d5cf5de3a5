"""The framework that an array is of: torch or cupy, recognised without importing either."""

from __future__ import annotations

import sys
from functools import cache as once
from typing import Any, Final

import numpy as np

from spaninfer_kernel_launch.errors import DTypeError

_KNOWN: Final = ("torch", "cupy")
_found: Final[dict[type, str | None]] = {}


def framework_of(kind: type) -> str | None:
    """Return "torch" or "cupy" for a class of theirs, or one made from such; None for others."""
    if kind not in _found:
        owners = {made.__module__.partition(".")[0] for made in kind.__mro__}
        _found[kind] = next((name for name in _KNOWN if name in owners), None)
    return _found[kind]


def torch() -> Any:
    """Return the module, which is imported wherever there is a tensor."""
    return sys.modules["torch"]


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the numpy or ml_dtypes name of numpy's, ml_dtypes' or torch's element type, or name.

    Raises DTypeError for others.
    """
    if framework_of(type(dtype)) == "torch":
        return dtype_of_torch(dtype)
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError as unknown:
        raise DTypeError(f"{dtype!r} is not an element type") from unknown
    return found


def dtype_in_torch(dtype: object) -> Any:
    """Return torch's element type of a numpy or ml_dtypes name."""
    return getattr(torch(), np.dtype(dtype).name)  # type: ignore[call-overload]


@once
def dtype_of_torch(dtype: Any) -> np.dtype[Any]:
    """Return the numpy or ml_dtypes name of torch's element type. Raises DTypeError without one."""
    name = str(dtype).removeprefix("torch.")
    try:
        return np.dtype(name)
    except TypeError as unknown:
        raise DTypeError(f"no kernel takes elements of type {dtype}") from unknown
