"""Norms of rows, or of the heads of rows, as calls."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.arguments import Arguments, Float32
from spaninfer_kernels_cpu.codegen.elements import larger, smaller
from spaninfer_kernels_cpu.elementwise.norm_kernel import layer_norm, rms_norm
from spaninfer_kernels_cpu.errors import check_vector, demand_size
from spaninfer_kernels_cpu.runtime.call import (
    MAX_SIZE,
    NUMBERS_PER_TASK,
    TOKENS,
    Call,
    Matrix,
    address_or_zero,
    row_at,
    tokens_per_task,
)

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """x / sqrt(mean(x²) + eps) times weight[C], or times 1 + weight where `plus_one` (Gemma)."""

    weight: Floats
    eps: float
    plus_one: bool = False

    def __post_init__(self) -> None:
        """Raise KernelError unless the weight is a vector of float32."""
        check_vector("weight", self.weight, len(self.weight))


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """(x - mean) / sqrt(variance + eps) times weight[C], plus bias[C] if there is one."""

    weight: Floats
    bias: Floats | None
    eps: float

    def __post_init__(self) -> None:
        """Raise KernelError unless weight and bias are vectors of float32."""
        check_vector("weight", self.weight, len(self.weight))
        if self.bias is not None:
            check_vector("bias", self.bias, len(self.weight))


@dataclass(frozen=True, slots=True)
class _RmsNormArguments(Arguments):
    x: Matrix
    out: Matrix
    weight: int
    parts: int
    channels: int
    plus_one: bool
    eps: Float32


def rms_norm_call(
    x: Matrix, norm: RmsNorm, *, out: Matrix, parts: int = 1, count: int = TOKENS
) -> Call:
    """Write the RMS norm of every one of `parts` parts of a row; the caller keeps weight alive.

    SizeError where there are no parts.
    """
    demand_size("parts", parts, 1, MAX_SIZE)
    channels = len(norm.weight)
    arguments = _RmsNormArguments(
        x=x,
        out=out,
        weight=norm.weight.ctypes.data,
        parts=parts,
        channels=channels,
        plus_one=norm.plus_one,
        eps=norm.eps,
    )
    return Call(_rms_norm, arguments, 1, tokens_per_task(parts * channels), count)


def _rms_norm(arguments: _RmsNormArguments, tokens: int, task: int) -> None:
    parts, channels = arguments.parts, arguments.channels
    weight, plus_one, eps = arguments.weight, arguments.plus_one, arguments.eps
    some = larger(1, NUMBERS_PER_TASK // (parts * channels))
    for row in range(task * some, smaller(tokens, (task + 1) * some)):
        x, out = row_at(arguments.x, row), row_at(arguments.out, row)
        for part in range(parts):
            start = part * channels * 4
            rms_norm(x + start, weight, out + start, channels, eps, plus_one)


@dataclass(frozen=True, slots=True)
class _LayerNormArguments(Arguments):
    x: Matrix
    out: Matrix
    weight: int
    bias: int
    parts: int
    channels: int
    eps: Float32


def layer_norm_call(
    x: Matrix, norm: LayerNorm, *, out: Matrix, parts: int = 1, count: int = TOKENS
) -> Call:
    """Write the layer norm of every one of `parts` parts of a row; weight and bias stay alive.

    SizeError where there are no parts.
    """
    demand_size("parts", parts, 1, MAX_SIZE)
    channels = len(norm.weight)
    arguments = _LayerNormArguments(
        x=x,
        out=out,
        weight=norm.weight.ctypes.data,
        bias=address_or_zero(norm.bias),
        parts=parts,
        channels=channels,
        eps=norm.eps,
    )
    return Call(_layer_norm, arguments, 1, tokens_per_task(parts * channels), count)


def _layer_norm(arguments: _LayerNormArguments, tokens: int, task: int) -> None:
    parts, channels = arguments.parts, arguments.channels
    weight, bias, eps = arguments.weight, arguments.bias, arguments.eps
    some = larger(1, NUMBERS_PER_TASK // (parts * channels))
    for row in range(task * some, smaller(tokens, (task + 1) * some)):
        x, out = row_at(arguments.x, row), row_at(arguments.out, row)
        for part in range(parts):
            start = part * channels * 4
            layer_norm(x + start, weight, bias, out + start, channels, eps)
