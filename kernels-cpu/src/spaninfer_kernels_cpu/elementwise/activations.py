"""Activations, for Numba functions to call: spaninfer_op_reference.ACTIVATIONS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import larger, smaller
from spaninfer_kernels_cpu.codegen.exponential import exp, tanh
from spaninfer_kernels_cpu.codegen.specialization import specialized

_ZERO = np.float32(0)
_HALF = np.float32(0.5)
_ONE = np.float32(1)


@dataclass(frozen=True, slots=True)
class Activation(Constant):
    """One of ACTIVATIONS."""

    name: str


@specialized(lambda activation: _FORMULAS[activation.name])
def activated(activation: Activation, x: np.float32) -> np.float32:
    """Return an activation of x."""
    raise NotImplementedError("exists in Numba functions only")


_CLAMP = np.float32(7)
_QUICK = np.float32(1.702)
_ROOT_2_PI = np.float32((2 / np.pi) ** 0.5)
_ROOT_HALF = np.float32(0.5**0.5)
_CUBE = np.float32(0.044715)


@device_function
def _sigmoid(x: np.float32) -> np.float32:
    return _ONE / (_ONE + exp(-x))


@device_function
def clamped_swiglu(gate: np.float32, up: np.float32) -> np.float32:
    """Return quick_gelu(min(gate, 7)) * (1 + up within ±7)."""
    opened, raised = smaller(gate, _CLAMP), larger(-_CLAMP, smaller(up, _CLAMP))
    inner: np.float32 = opened * _sigmoid(_QUICK * opened) * (raised + _ONE)
    return inner


@device_function
def _gelu_tanh(x: np.float32) -> np.float32:
    return x * _HALF * (_ONE + tanh(_ROOT_2_PI * (x + _CUBE * x * x * x)))


@device_function
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


_FORMULAS: dict[str, Any] = {
    "silu": lambda activation, x: x * _sigmoid(x),  # noqa: ARG005
    "gelu": lambda activation, x: x * _normal(x),  # noqa: ARG005
    "gelu_tanh": lambda activation, x: _gelu_tanh(x),  # noqa: ARG005
    "quick_gelu": lambda activation, x: x * _sigmoid(_QUICK * x),  # noqa: ARG005
    "sigmoid": lambda activation, x: _sigmoid(x),  # noqa: ARG005
    "relu": lambda activation, x: _ZERO if x < _ZERO else x,  # noqa: ARG005
}

SIGMOID = Activation("sigmoid")  # of gates; no MLP has it

ACTIVATIONS = {name: Activation(name) for name in _FORMULAS if name != SIGMOID.name}
"""By the names of spaninfer_op_reference."""

SILU = ACTIVATIONS["silu"]

GATES = (*ACTIVATIONS, "clamped_swiglu")
"""What spaninfer_op_reference.gated knows."""
