"""Checks of arrays that callers hand in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.errors import DTypeError, KernelError, ShapeError

Ints = NDArray[np.int32]


def demand_below(name: str, numbers: Ints, limit: int, what: str) -> None:
    """Raise unless all numbers index `limit` things."""
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < limit:
        wrong = numbers.min() if numbers.min() < 0 else numbers.max()
        raise KernelError(f"{name} holds {wrong}; there are {limit} {what}")


def demand(name: str, array: NDArray[np.generic], dtype: Any, axes: str, *, ordered: int) -> None:
    """Raise unless `array` has this type and these axes, the last `ordered` of them contiguous."""
    if array.dtype != dtype:
        raise DTypeError(f"{name} holds {array.dtype}; the kernel takes {np.dtype(dtype)}")
    letters = axes.split()
    if array.ndim != len(letters):
        raise ShapeError(f"{name}: expected axes ({axes}), got shape {array.shape}")
    if not array.flags.aligned:
        raise ShapeError(
            f"{name} does not lie at a multiple of its elements' {array.itemsize} bytes"
        )
    contiguous = array.flags.c_contiguous or (
        ordered < array.ndim and (array.shape[-1] < 2 or array.strides[-1] == array.itemsize)
    )
    if not contiguous:
        raise ShapeError(
            f"{name}: the last {ordered} of the axes ({axes}) must be contiguous, but the strides "
            f"are {array.strides} bytes for shape {array.shape}"
        )
