"""Activations, for Numba functions to call: spaninfer_op_reference.ACTIVATIONS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.device_function import device_function, device_function_with
from spaninfer_kernels_cpu.codegen.elements import larger, smaller
from spaninfer_kernels_cpu.codegen.exponential import coarse_exp2, exp, exp2, tanh
from spaninfer_kernels_cpu.codegen.specialization import specialized

_ZERO = np.float32(0)
_HALF = np.float32(0.5)
_ONE = np.float32(1)


@dataclass(frozen=True, slots=True)
class Activation(Constant):
    """One of ACTIVATIONS, or of COARSE_ACTIVATIONS."""

    name: str


@specialized(lambda activation: _FORMULAS[activation.name])
def activated(activation: Activation, x: np.float32) -> np.float32:
    """Return an activation of x."""
    raise NotImplementedError("exists in Numba functions only")


_CLAMP = np.float32(7)
_QUICK = np.float32(1.702)
_ROOT_2_PI = np.float32((2 / np.pi) ** 0.5)
_CUBE = np.float32(0.044715)
_TAIL_END = np.float32(10)  # where the normal distribution's tail is 8e-24
_COARSE_TAIL_END = np.float32(6)  # where it is 1e-9


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


@device_function_with(fastmath={"contract"})
def _gelu(x: np.float32) -> np.float32:
    """Return x times the normal distribution function of x, within 1e-7 of the larger of 1 and |x|.

    As max(x, 0) - |x| tail(|x|), where the tail's logarithm to base 2 is a polynomial of degree 8
    up to |x| = 10, the nearest to it where errors count as those of the result: no division, half
    the operations of a formula with exp(-x²/2), and right for infinities.
    """
    z = abs(x)
    z = _TAIL_END if z > _TAIL_END else z
    p = np.float32(-1.0864874866456375e-06)
    p = p * z + np.float32(1.8613922293297946e-05)
    p = p * z + np.float32(-8.852517930790782e-05)
    p = p * z + np.float32(-0.0003698983637150377)
    p = p * z + np.float32(0.0073630316182971)
    p = p * z + np.float32(-0.0526994913816452)
    p = p * z + np.float32(-0.4591425955295563)
    p = p * z + np.float32(-1.1511129140853882)
    p = p * z + np.float32(-0.9999998211860657)
    result: np.float32 = larger(x, _ZERO) - z * exp2(p)
    return result


@device_function_with(fastmath={"contract"})
def _coarse_gelu(x: np.float32) -> np.float32:
    """Return `_gelu` within 2e-5, by polynomials of degree 4 and 3: 16 operations instead of 24."""
    z = abs(x)
    z = _COARSE_TAIL_END if z > _COARSE_TAIL_END else z
    p = np.float32(0.0038662953302264214)
    p = p * z + np.float32(-0.04407945275306702)
    p = p * z + np.float32(-0.4680144786834717)
    p = p * z + np.float32(-1.1473724842071533)
    p = p * z + np.float32(-1.0004795789718628)
    result: np.float32 = larger(x, _ZERO) - z * coarse_exp2(p)
    return result


_FORMULAS: dict[str, Any] = {
    "silu": lambda activation, x: x * _sigmoid(x),  # noqa: ARG005
    "gelu": lambda activation, x: _gelu(x),  # noqa: ARG005
    "gelu_tanh": lambda activation, x: _gelu_tanh(x),  # noqa: ARG005
    "quick_gelu": lambda activation, x: x * _sigmoid(_QUICK * x),  # noqa: ARG005
    "sigmoid": lambda activation, x: _sigmoid(x),  # noqa: ARG005
    "relu": lambda activation, x: _ZERO if x < _ZERO else x,  # noqa: ARG005
    "coarse gelu": lambda activation, x: _coarse_gelu(x),  # noqa: ARG005
}

SIGMOID = Activation("sigmoid")  # of gates; no MLP has it

COARSE_ACTIVATIONS = {"gelu": Activation("coarse gelu")}
"""By the same names, those whose results are to be rounded to 8 bits: within 2e-5 of the others."""

ACTIVATIONS = {
    name: Activation(name)
    for name in _FORMULAS
    if name != SIGMOID.name and Activation(name) not in COARSE_ACTIVATIONS.values()
}
"""By the names of spaninfer_op_reference."""

SILU = ACTIVATIONS["silu"]

GATES = (*ACTIVATIONS, "clamped_swiglu")
"""What spaninfer_op_reference.gated knows."""
