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
class _ByRowArguments(Arguments):
    """Arguments of a call that scales rows by the first number of another matrix's."""

    scaled: _Scaled
    factor: Matrix


def sigmoid_gate_call(
    x: Matrix, gate: Matrix, *, out: Matrix, channels: int, count: int = TOKENS
) -> Call:
    """Write x[T C] * sigmoid(gate[T 1])."""
    arguments = _ByRowArguments(scaled=_Scaled(x, out, channels), factor=gate)
    return Call(_sigmoid_gate, arguments, 1, tokens_per_task(channels), count)


def _sigmoid_gate(arguments: _ByRowArguments, tokens: int, task: int) -> None:
    some = larger(1, NUMBERS_PER_TASK // arguments.scaled.channels)
    for row in range(task * some, smaller(tokens, (task + 1) * some)):
        gate = floats_at(row_at(arguments.factor, row), 1)[0]
        _scale(arguments.scaled, row, _ONE / (_ONE + exp(-gate)))


def scale_rows_call(
    x: Matrix, factor: Matrix, *, out: Matrix, channels: int, count: int = TOKENS
) -> Call:
    """Write x[T C] * factor[T 1]."""
    arguments = _ByRowArguments(scaled=_Scaled(x, out, channels), factor=factor)
    return Call(_scale_rows, arguments, 1, tokens_per_task(channels), count)


def _scale_rows(arguments: _ByRowArguments, tokens: int, task: int) -> None:
    some = larger(1, NUMBERS_PER_TASK // arguments.scaled.channels)
    for row in range(task * some, smaller(tokens, (task + 1) * some)):
        _scale(arguments.scaled, row, floats_at(row_at(arguments.factor, row), 1)[0])


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


@dataclass(frozen=True, slots=True)
class Llama4Growth:
    """The factor 1 + beta * log(1 + floor((position + offset) / length)) of a position."""

    beta: float
    length: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class _Llama4Arguments(Arguments):
    scaled: _Scaled
    position: Indirect
    beta: Float32
    length: int
    offset: int


def llama4_scale_call(
    x: Matrix, *, out: Matrix, channels: int, position: Indirect, growth: Llama4Growth
) -> Call:
    """Write x[T C] times the growth of position[T] (int32); lengths are 1 or more."""
    demand_size("length", growth.length, 1, MAX_SIZE)
    demand_size("offset", growth.offset, 0, MAX_SIZE)
    arguments = _Llama4Arguments(
        scaled=_Scaled(x, out, channels),
        position=position,
        beta=growth.beta,
        length=growth.length,
        offset=growth.offset,
    )
    return Call(_llama4_scale, arguments, 1, tokens_per_task(channels))


def _llama4_scale(arguments: _Llama4Arguments, tokens: int, task: int) -> None:
    position = numbers_at(arguments.position, tokens, np.int32)
    some = larger(1, NUMBERS_PER_TASK // arguments.scaled.channels)
    for row in range(task * some, smaller(tokens, (task + 1) * some)):
        steps = (np.int64(position[row]) + arguments.offset) // arguments.length
        grown = np.float32(math.log(np.float64(steps) + 1.0)) * arguments.beta
        _scale(arguments.scaled, row, _ONE + grown)


@device_function
def _scale(scaled: _Scaled, row: int, factor: np.float32) -> None:
    x = floats_at(row_at(scaled.x, row), scaled.channels)
    out = floats_at(row_at(scaled.out, row), scaled.channels)
    for i in range(len(out)):
        out[i] = x[i] * factor
