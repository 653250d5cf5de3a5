"""Norms of rows[T C] of float32 without gaps, for Numba functions to call.

Addresses are in bytes.
"""

from __future__ import annotations

import numpy as np

from spaninfer_kernels_cpu.codegen.device_function import device_function, device_function_with
from spaninfer_kernels_cpu.codegen.elements import FLOAT32, read, write

_REORDER = {"contract", "reassoc", "nsz", "arcp"}  # sums may go by lanes; NaN and inf still hold
_ZERO = np.float32(0)
_ONE = np.float32(1)


@device_function
def rms_norm(
    x: int, weight: int, out: int, rows: int, channels: int, eps: np.float32, plus_one: bool
) -> None:
    """Write x / sqrt(mean(x²) + eps) * weight[C], or * (1 + weight) where `plus_one` (Gemma)."""
    more = _ONE if plus_one else _ZERO
    for row in range(rows):
        source, into = x + row * channels * 4, out + row * channels * 4
        factor = _ONE / np.sqrt(_squares(source, _ZERO, channels) / np.float32(channels) + eps)
        for i in range(channels):
            y = read(FLOAT32, source, i) * factor * (read(FLOAT32, weight, i) + more)
            write(FLOAT32, into, i, y)


@device_function
def layer_norm(
    x: int, weight: int, bias: int, out: int, rows: int, channels: int, eps: np.float32
) -> None:
    """Write (x - mean) / sqrt(variance + eps) * weight[C] + bias[C]; bias may be 0, for none.

    The variance is taken of the differences, in a second pass: of squares less the squared mean,
    float32 loses too much.
    """
    for row in range(rows):
        source, into = x + row * channels * 4, out + row * channels * 4
        mean = _sum(source, channels) / np.float32(channels)
        factor = _ONE / np.sqrt(_squares(source, mean, channels) / np.float32(channels) + eps)
        for i in range(channels):
            y = (read(FLOAT32, source, i) - mean) * factor * read(FLOAT32, weight, i)
            write(FLOAT32, into, i, y)
        if bias != 0:
            for i in range(channels):
                write(FLOAT32, into, i, read(FLOAT32, into, i) + read(FLOAT32, bias, i))


@device_function_with(fastmath=_REORDER)
def _sum(x: int, count: int) -> np.float32:
    total = _ZERO
    for i in range(count):
        total += read(FLOAT32, x, i)
    return total


@device_function_with(fastmath=_REORDER)
def _squares(x: int, mean: np.float32, count: int) -> np.float32:
    total = _ZERO
    for i in range(count):
        difference = read(FLOAT32, x, i) - mean
        total += difference * difference
    return total
