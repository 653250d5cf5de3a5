"""Rows times a number of their own as calls: a gate, or what their position says."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from spaninfer_kernels_cpu.codegen.arguments import Arguments, Float32, Indirect
from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import larger, smaller
from spaninfer_kernels_cpu.codegen.exponential import exp
from spaninfer_kernels_cpu.errors import demand_size
from spaninfer_kernels_cpu.runtime.call import (
    MAX_SIZE,
    NUMBERS_PER_TASK,
    TOKENS,
    Call,
    Matrix,
    row_at,
    tokens_per_task,
)

_ONE = np.float32(1)


@dataclass(frozen=True, slots=True)
class _Scaled(Arguments):
    """The common arguments of scaling kernels: rows of x into out."""

    x: Matrix
    out: Matrix
    channels: int


@dataclass(frozen=True, slots=True)
class _SigmoidGateArguments(Arguments):
    scaled: _Scaled
    gate: Matrix


def sigmoid_gate_call(
    x: Matrix, gate: Matrix, *, out: Matrix, channels: int, count: int = TOKENS
) -> Call:
    """Write x[T C] * sigmoid(gate[T 1])."""
    arguments = _SigmoidGateArguments(scaled=_Scaled(x, out, channels), gate=gate)
    return Call(_sigmoid_gate, arguments, 1, tokens_per_task(channels), count)


def _sigmoid_gate(arguments: _SigmoidGateArguments, tokens: int, task: int) -> None:
    some = larger(1, NUMBERS_PER_TASK // arguments.scaled.channels)
    for row in range(task * some, smaller(tokens, (task + 1) * some)):
        gate = floats_at(row_at(arguments.gate, row), 1)[0]
        _scale(arguments.scaled, row, _ONE / (_ONE + exp(-gate)))


@dataclass(frozen=True, slots=True)
class _LognArguments(Arguments):
    scaled: _Scaled
    position: Indirect
    per_log: Float32


def logn_call(x: Matrix, *, out: Matrix, channels: int, position: Indirect, base: int) -> Call:
    """Write x[T C] * max(1, log_base(position[T] + 1)); positions are int32, the base 2 or more."""
    demand_size("base", base, 2, MAX_SIZE)
    arguments = _LognArguments(
        scaled=_Scaled(x, out, channels), position=position, per_log=1 / math.log(base)
    )
    return Call(_logn, arguments, 1, tokens_per_task(channels))


def _logn(arguments: _LognArguments, tokens: int, task: int) -> None:
    position = numbers_at(arguments.position, tokens, np.int32)
    some = larger(1, NUMBERS_PER_TASK // arguments.scaled.channels)
    for row in range(task * some, smaller(tokens, (task + 1) * some)):
        grown = np.float32(math.log(np.float64(position[row]) + 1.0)) * arguments.per_log
        _scale(arguments.scaled, row, larger(_ONE, grown))


@device_function
def _scale(scaled: _Scaled, row: int, factor: np.float32) -> None:
    x = floats_at(row_at(scaled.x, row), scaled.channels)
    out = floats_at(row_at(scaled.out, row), scaled.channels)
    for i in range(len(out)):
        out[i] = x[i] * factor
