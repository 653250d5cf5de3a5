"""Norms of rows, or of the heads of rows, as calls."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.call import (
    MAX_SIZE,
    NUMBERS_PER_TASK,
    ROWS,
    Call,
    Rows,
    real,
    rows_per_task,
    word,
)
from spaninfer_kernels_cpu.elements import larger, smaller
from spaninfer_kernels_cpu.errors import check_vector, demand_size
from spaninfer_kernels_cpu.norm_kernel import layer_norm, rms_norm

Floats = NDArray[np.float32]


def rms_norm_call(
    x: Rows,
    *,
    weight: Floats,
    out: Rows,
    eps: float,
    plus_one: bool,
    parts: int = 1,
    count: int = ROWS,
) -> Call:
    """Write the RMS norm of every one of `parts` parts of a row, times weight[C] or 1 + weight.

    Raises KernelError for another weight, and where there are no parts.
    """
    _check(parts, weight)
    channels = len(weight)
    words = (x.address, x.stride, out.address, out.stride, weight.ctypes.data, parts, channels)
    some = rows_per_task(parts * channels)
    return Call(_rms_norm, (*words, int(plus_one), float(eps)), 1, some, count)


def _check(parts: int, weight: Floats) -> None:
    demand_size("parts", parts, 1, MAX_SIZE)
    check_vector("weight", weight, len(weight))


def _rms_norm(words: int, rows: int, task: int) -> None:
    parts, channels = word(words, 5), word(words, 6)
    weight, plus_one, eps = word(words, 4), word(words, 7) != 0, real(words, 8)
    some = larger(1, NUMBERS_PER_TASK // (parts * channels))
    for row in range(task * some, smaller(rows, (task + 1) * some)):
        x, out = word(words, 0) + row * word(words, 1), word(words, 2) + row * word(words, 3)
        rms_norm(x, weight, out, parts, channels, eps, plus_one)


def layer_norm_call(
    x: Rows,
    *,
    weight: Floats,
    bias: Floats | None,
    out: Rows,
    eps: float,
    parts: int = 1,
    count: int = ROWS,
) -> Call:
    """Write the layer norm of every one of `parts` parts of a row, times weight[C] plus bias[C].

    Raises KernelError for another weight or bias, and where there are no parts.
    """
    _check(parts, weight)
    if bias is not None:
        check_vector("bias", bias, len(weight))
    channels = len(weight)
    address = 0 if bias is None else bias.ctypes.data
    words = (x.address, x.stride, out.address, out.stride, weight.ctypes.data, parts, channels)
    some = rows_per_task(parts * channels)
    return Call(_layer_norm, (*words, address, float(eps)), 1, some, count)


def _layer_norm(words: int, rows: int, task: int) -> None:
    parts, channels = word(words, 5), word(words, 6)
    weight, bias, eps = word(words, 4), word(words, 7), real(words, 8)
    some = larger(1, NUMBERS_PER_TASK // (parts * channels))
    for row in range(task * some, smaller(rows, (task + 1) * some)):
        x, out = word(words, 0) + row * word(words, 1), word(words, 2) + row * word(words, 3)
        layer_norm(x, weight, bias, out, parts, channels, eps)
