"""Rows times a number of their own as calls: a gate, or what their position says."""

from __future__ import annotations

import math

import numpy as np

from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import larger, smaller
from spaninfer_kernels_cpu.codegen.exponential import exp
from spaninfer_kernels_cpu.runtime.call import (
    NUMBERS_PER_TASK,
    TOKENS,
    Call,
    Indirect,
    Matrix,
    held,
    real,
    tokens_per_task,
    word,
)

_ONE = np.float32(1)


def sigmoid_gate_call(
    x: Matrix, gate: Matrix, *, out: Matrix, channels: int, count: int = TOKENS
) -> Call:
    """Write x[T C] * sigmoid(gate[T 1])."""
    words = (x.address, x.stride, out.address, out.stride, channels, gate.address, gate.stride)
    return Call(_sigmoid_gate, words, 1, tokens_per_task(channels), count)


def _sigmoid_gate(words: int, rows: int, task: int) -> None:
    some = larger(1, NUMBERS_PER_TASK // word(words, 4))
    for row in range(task * some, smaller(rows, (task + 1) * some)):
        gate = floats_at(word(words, 5) + row * word(words, 6), 1)[0]
        _scale(words, row, _ONE / (_ONE + exp(-gate)))


def logn_call(x: Matrix, *, out: Matrix, channels: int, places: Indirect, base: int) -> Call:
    """Write x[T C] * max(1, log_base(places[T] + 1)); places are int32."""
    rows = (x.address, x.stride, out.address, out.stride, channels)
    words = (*rows, places, float(1 / math.log(base)))
    return Call(_logn, words, 1, tokens_per_task(channels))


def _logn(words: int, rows: int, task: int) -> None:
    places = numbers_at(held(words, 5), rows, np.int32)
    some = larger(1, NUMBERS_PER_TASK // word(words, 4))
    for row in range(task * some, smaller(rows, (task + 1) * some)):
        grown = np.float32(math.log(np.float64(places[row]) + 1.0)) * real(words, 6)
        _scale(words, row, larger(_ONE, grown))


@device_function
def _scale(words: int, row: int, factor: np.float32) -> None:
    x = floats_at(word(words, 0) + row * word(words, 1), word(words, 4))
    out = floats_at(word(words, 2) + row * word(words, 3), word(words, 4))
    for i in range(len(out)):
        out[i] = x[i] * factor
