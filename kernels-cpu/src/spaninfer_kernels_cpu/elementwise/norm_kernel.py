"""Norms of C numbers of float32 that lie side by side, for Numba functions to call.

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
def rms_norm(x: int, weight: int, out: int, channels: int, eps: np.float32, plus_one: bool) -> None:
    """Write x / sqrt(mean(x²) + eps) * weight[C], or * (1 + weight) where `plus_one` (Gemma).

    `out` may be `x`: then it is written as such, since loops whose arrays may overlap stay scalar.
    """
    more = _ONE if plus_one else _ZERO
    factor = _ONE / np.sqrt(_squares(x, _ZERO, channels) / np.float32(channels) + eps)
    if out == x:
        _scale(x, weight, x, channels, factor, more)
    else:
        _scale(x, weight, out, channels, factor, more)


@device_function
def _scale(
    x: int, weight: int, out: int, channels: int, factor: np.float32, more: np.float32
) -> None:
    for i in range(channels):
        y = read(FLOAT32, x, i) * factor * (read(FLOAT32, weight, i) + more)
        write(FLOAT32, out, i, y)


@device_function
def layer_norm(x: int, weight: int, bias: int, out: int, channels: int, eps: np.float32) -> None:
    """Write (x - mean) / sqrt(variance + eps) * weight[C] + bias[C]; bias may be 0, for none.

    The variance is taken of the differences, in a second pass: of squares less the squared mean,
    float32 loses too much.
    """
    mean = _sum(x, channels) / np.float32(channels)
    factor = _ONE / np.sqrt(_squares(x, mean, channels) / np.float32(channels) + eps)
    if bias != 0:
        for i in range(channels):
            y = (read(FLOAT32, x, i) - mean) * factor * read(FLOAT32, weight, i)
            write(FLOAT32, out, i, y + read(FLOAT32, bias, i))
    else:
        for i in range(channels):
            write(FLOAT32, out, i, (read(FLOAT32, x, i) - mean) * factor * read(FLOAT32, weight, i))


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
