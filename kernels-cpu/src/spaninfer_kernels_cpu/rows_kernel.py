"""Norms and activations of rows, for Numba functions to call: each part takes its share of them.

Rows[T C] lie one after the other without gaps. Activations are `act` (FLOAT32 or BFLOAT16), what
products wrote is float32; all arithmetic is float32. Addresses are in bytes, 0 is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload

from spaninfer_kernels_cpu.constants import Constant
from spaninfer_kernels_cpu.elements import FLOAT32, Element, read, write
from spaninfer_kernels_cpu.exponential import exp, tanh
from spaninfer_kernels_cpu.in_kernel import in_kernel

_REORDER = {"contract", "reassoc", "nsz", "arcp"}  # sums may go by lanes; NaN and inf still hold
_ZERO = np.float32(0)
_HALF = np.float32(0.5)
_ONE = np.float32(1)


@in_kernel
def rms_norm(
    act: Element,
    part: int,
    parts: int,
    x: int,
    added: int,
    weight: int,
    out: int,
    rows: int,
    channels: int,
    eps: np.float32,
    plus_one: bool,
) -> None:
    """Add added[T C] (float32, or none) to x[T C], then write its RMS norm into out[T C].

    x / sqrt(mean(x²) + eps) * weight[C] (float32), or * (1 + weight) where `plus_one` (Gemma).
    The sum is rounded to `act` before it is normalised. Without `out`, only the addition is done.
    """
    width = act.bits // 8 * channels
    more = _ONE if plus_one else _ZERO
    for row in range(rows * part // parts, rows * (part + 1) // parts):
        source = x + row * width
        if added != 0:
            _add(act, source, added + row * channels * 4, channels)
        if out != 0:
            squares = _squares(act, source, _ZERO, channels)
            factor = _ONE / np.sqrt(squares / np.float32(channels) + eps)
            _scale(act, source, _ZERO, factor, weight, more, 0, out + row * width, channels)


@in_kernel
def layer_norm(
    act: Element,
    part: int,
    parts: int,
    x: int,
    added: int,
    weight: int,
    bias: int,
    out: int,
    rows: int,
    channels: int,
    eps: np.float32,
) -> None:
    """Add added[T C] (float32, or none) to x[T C], then write its layer norm into out[T C].

    (x - mean) / sqrt(variance + eps) * weight[C] + bias[C], both float32. The variance is taken
    of the differences, in a second pass: of squares less the squared mean, float32 loses too much.
    """
    width = act.bits // 8 * channels
    for row in range(rows * part // parts, rows * (part + 1) // parts):
        source = x + row * width
        if added != 0:
            _add(act, source, added + row * channels * 4, channels)
        if out != 0:
            mean = _sum(act, source, channels) / np.float32(channels)
            squares = _squares(act, source, mean, channels)
            factor = _ONE / np.sqrt(squares / np.float32(channels) + eps)
            _scale(act, source, mean, factor, weight, _ZERO, bias, out + row * width, channels)


@in_kernel
def _add(act: Element, x: int, added: int, count: int) -> None:
    for i in range(count):
        write(act, x, i, read(act, x, i) + read(FLOAT32, added, i))


@njit(fastmath=_REORDER, error_model="numpy")
def _sum(act: Element, x: int, count: int) -> np.float32:
    total = _ZERO
    for i in range(count):
        total += read(act, x, i)
    return total


@njit(fastmath=_REORDER, error_model="numpy")
def _squares(act: Element, x: int, mean: np.float32, count: int) -> np.float32:
    total = _ZERO
    for i in range(count):
        difference = read(act, x, i) - mean
        total += difference * difference
    return total


@in_kernel
def _scale(
    act: Element,
    x: int,
    mean: np.float32,
    factor: np.float32,
    weight: int,
    more: np.float32,
    bias: int,
    out: int,
    count: int,
) -> None:
    """Write (x - mean) * factor * (weight + more) + bias."""
    if bias != 0:
        for i in range(count):
            y = (read(act, x, i) - mean) * factor * (read(FLOAT32, weight, i) + more)
            write(act, out, i, y + read(FLOAT32, bias, i))
    else:
        for i in range(count):
            y = (read(act, x, i) - mean) * factor * (read(FLOAT32, weight, i) + more)
            write(act, out, i, y)


# ---- activations -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Activation(Constant):
    """One of ACTIVATIONS."""

    name: str


SILU = Activation("silu")
GELU = Activation("gelu")
GELU_TANH = Activation("gelu_tanh")
QUICK_GELU = Activation("quick_gelu")
RELU = Activation("relu")

ACTIVATIONS = {one.name: one for one in (SILU, GELU, GELU_TANH, QUICK_GELU, RELU)}
"""By the names of spaninfer_op_reference."""


@in_kernel
def gate(
    act: Element,
    activation: Activation,
    part: int,
    parts: int,
    gate_up: int,
    out: int,
    rows: int,
    inner: int,
) -> None:
    """Write activation(gate) * up of gate_up[T 2I] (float32, gates first) into out[T I].

    Parts share single numbers, not rows, so that one row keeps all of them busy.
    """
    first, last = rows * inner * part // parts, rows * inner * (part + 1) // parts
    while first < last:
        row, start = first // inner, first % inner
        count = min(inner - start, last - first)
        gates = gate_up + (row * 2 * inner + start) * 4
        ups, into = gates + inner * 4, out + first * act.bits // 8
        for i in range(count):
            y = activated(activation, read(FLOAT32, gates, i)) * read(FLOAT32, ups, i)
            write(act, into, i, y)
        first += count


@in_kernel
def activate(
    act: Element, activation: Activation, part: int, parts: int, x: int, out: int, count: int
) -> None:
    """Write activation(x) of x[count] (float32) into out[count]."""
    first, last = count * part // parts, count * (part + 1) // parts
    source, into = x + first * 4, out + first * act.bits // 8
    for i in range(last - first):
        write(act, into, i, activated(activation, read(FLOAT32, source, i)))


def activated(activation: Activation, x: np.float32) -> np.float32:
    """Return an activation of x."""
    raise NotImplementedError("exists in Numba functions only")


@overload(activated)
def _activated(activation, x):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Choose the code by the type of the constant; Numba compares signatures to the letter."""
    kind: Any = activation
    return _FORMULAS[kind.value.name]


_QUICK = np.float32(1.702)
_ROOT_2_PI = np.float32((2 / np.pi) ** 0.5)
_ROOT_HALF = np.float32(0.5**0.5)
_CUBE = np.float32(0.044715)


@in_kernel
def _sigmoid(x: np.float32) -> np.float32:
    return _ONE / (_ONE + exp(-x))


@in_kernel
def _gelu_tanh(x: np.float32) -> np.float32:
    return x * _HALF * (_ONE + tanh(_ROOT_2_PI * (x + _CUBE * x * x * x)))


@in_kernel
def _normal(x: np.float32) -> np.float32:
    """Return the normal distribution function of x, within 2e-7.

    By erfc(z) = (a1 t + ... + a5 t⁵) exp(-z²), t = 1 / (1 + p z), for z >= 0 (Abramowitz and
    Stegun 1964, 7.1.26).
    """
    z = abs(x) * _ROOT_HALF
    t = _ONE / (_ONE + np.float32(0.3275911) * z)
    p = np.float32(1.061405429)
    p = p * t + np.float32(-1.453152027)
    p = p * t + np.float32(1.421413741)
    p = p * t + np.float32(-0.284496736)
    p = p * t + np.float32(0.254829592)
    tail = _HALF * p * t * exp(-z * z)
    return tail if x < _ZERO else _ONE - tail


_FORMULAS = {
    "silu": lambda activation, x: x * _sigmoid(x),  # noqa: ARG005
    "gelu": lambda activation, x: x * _normal(x),  # noqa: ARG005
    "gelu_tanh": lambda activation, x: _gelu_tanh(x),  # noqa: ARG005
    "quick_gelu": lambda activation, x: x * _sigmoid(_QUICK * x),  # noqa: ARG005
    "relu": lambda activation, x: _ZERO if x < _ZERO else x,  # noqa: ARG005
}
