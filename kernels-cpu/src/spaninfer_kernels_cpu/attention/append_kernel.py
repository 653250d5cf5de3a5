"""Keys and values written to spans, for Numba functions to call: rounded, or quantised.

Codes are those of spaninfer_op_reference.quantize_cache: a zero and a scale per token and head.
Addresses are in bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spaninfer_kernels_cpu.codegen.array_view import numbers_at
from spaninfer_kernels_cpu.codegen.device_function import (
    device_function,
    device_function_with,
)
from spaninfer_kernels_cpu.codegen.elements import FLOAT32, Element, read, write
from spaninfer_kernels_cpu.codegen.rounding import rounded
from spaninfer_kernels_cpu.codegen.specialization import specialized

_ORDERED = {"contract", "reassoc", "nsz", "arcp", "nnan"}  # else extremes are no vector code
GRID_BYTES = 8  # a zero and a scale
_MIN_SCALE = np.float32(1e-5)  # constant vectors still get a scale to divide by
_ZERO = np.float32(0)


def _choose_store(kind: Element) -> Any:
    if not kind.is_quantised:
        return _store_floats
    return _store_bytes if kind.bits == 8 else _store_nibbles


@specialized(_choose_store)
def store(kind: Element, x: int, size: int, into: int, scales: int) -> None:
    """Write x[size] (float32), rounded or quantised; then zero and scale go to `scales`."""
    raise NotImplementedError("exists in Numba functions only")


def _store_floats(kind: Element, x: int, size: int, into: int, scales: int) -> Any:  # noqa: ARG001
    for i in range(size):
        write(kind, into, i, read(FLOAT32, x, i))


def _store_bytes(kind: Element, x: int, size: int, into: int, scales: int) -> Any:
    zero, scale = _grid(kind, x, size, scales)
    codes = numbers_at(into, size, np.int8)
    for i in range(size):
        codes[i] = np.int8(_code(kind, read(FLOAT32, x, i), zero, scale))


def _store_nibbles(kind: Element, x: int, size: int, into: int, scales: int) -> Any:
    zero, scale = _grid(kind, x, size, scales)
    codes = numbers_at(into, size // 2, np.uint8)
    for i in range(size // 2):
        low = _code(kind, read(FLOAT32, x, 2 * i), zero, scale)
        high = _code(kind, read(FLOAT32, x, 2 * i + 1), zero, scale)
        codes[i] = np.uint8(low | high << np.int32(4))


@device_function_with(fastmath=_ORDERED)
def _extremes(x: int, count: int) -> tuple[np.float32, np.float32]:
    """Return the least and the largest of x and 0."""
    least = most = _ZERO
    for i in range(count):
        number = read(FLOAT32, x, i)
        least = min(least, number)
        most = max(most, number)
    return least, most


@device_function
def _grid(kind: Element, x: int, size: int, scales: int) -> tuple[np.float32, np.float32]:
    """Write and return the zero and the scale of x: the range of its numbers and 0."""
    least, most = _extremes(x, size)
    first, last = np.float32(kind.first), np.float32(kind.last)
    scale = max((most - least) / (last - first), _MIN_SCALE)
    zero = np.float32(rounded(min(max(first - least / scale, first), last)))
    write(FLOAT32, scales, 0, zero)
    write(FLOAT32, scales, 1, scale)
    return zero, scale


@device_function
def _code(kind: Element, number: np.float32, zero: np.float32, scale: np.float32) -> np.int32:
    code = number / scale + zero
    return rounded(min(max(code, np.float32(kind.first)), np.float32(kind.last)))
