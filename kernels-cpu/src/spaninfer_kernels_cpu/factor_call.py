"""Rows times a number of their own as calls: a gate, or what their position says."""

from __future__ import annotations

import math

import numpy as np

from spaninfer_kernels_cpu.call import (
    MAX_SIZE,
    NUMBERS_PER_TASK,
    ROWS,
    Call,
    Place,
    Rows,
    held,
    real,
    rows_per_task,
    word,
)
from spaninfer_kernels_cpu.elements import larger, smaller
from spaninfer_kernels_cpu.errors import demand_size
from spaninfer_kernels_cpu.exponential import exp
from spaninfer_kernels_cpu.in_kernel import in_kernel
from spaninfer_kernels_cpu.pointer import floats_at, numbers_at

_ONE = np.float32(1)


def sigmoid_gate_call(x: Rows, gate: Rows, *, out: Rows, channels: int, count: int = ROWS) -> Call:
    """Write x[T C] * sigmoid(gate[T 1])."""
    words = (x.address, x.stride, out.address, out.stride, channels, gate.address, gate.stride)
    return Call(_sigmoid_gate, words, 1, rows_per_task(channels), count)


def _sigmoid_gate(words: int, rows: int, task: int) -> None:
    some = larger(1, NUMBERS_PER_TASK // word(words, 4))
    for row in range(task * some, smaller(rows, (task + 1) * some)):
        gate = floats_at(word(words, 5) + row * word(words, 6), 1)[0]
        _scale(words, row, _ONE / (_ONE + exp(-gate)))


def logn_call(x: Rows, *, out: Rows, channels: int, places: Place, base: int) -> Call:
    """Write x[T C] * max(1, log_base(places[T] + 1)); places are int32, the base 2 or more."""
    demand_size("base", base, 2, MAX_SIZE)
    rows = (x.address, x.stride, out.address, out.stride, channels)
    words = (*rows, places, float(1 / math.log(base)))
    return Call(_logn, words, 1, rows_per_task(channels))


def _logn(words: int, rows: int, task: int) -> None:
    places = numbers_at(held(words, 5), rows, np.int32)
    some = larger(1, NUMBERS_PER_TASK // word(words, 4))
    for row in range(task * some, smaller(rows, (task + 1) * some)):
        grown = np.float32(math.log(np.float64(places[row]) + 1.0)) * real(words, 6)
        _scale(words, row, larger(_ONE, grown))


@in_kernel
def _scale(words: int, row: int, factor: np.float32) -> None:
    x = floats_at(word(words, 0) + row * word(words, 1), word(words, 4))
    out = floats_at(word(words, 2) + row * word(words, 3), word(words, 4))
    for i in range(len(out)):
        out[i] = x[i] * factor
