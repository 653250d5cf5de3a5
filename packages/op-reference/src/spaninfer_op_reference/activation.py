"""Activations, the error function, the cap on scores, and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

import numpy as np

from spaninfer_op_reference.arrays import Floats

_ERF_ONE = 6.0  # erf(6) differs from 1 by 2e-17, less than half a unit in the last place
_ERF_STEP = 1 / 64


def sigmoid(x: Floats) -> Floats:
    """Return 1 / (1 + exp(-x)); by tanh, which does not overflow."""
    return 0.5 * (np.tanh(0.5 * x) + 1)


def silu(x: Floats) -> Floats:
    """Return x * sigmoid(x)."""
    return x * sigmoid(x)


def gelu(x: Floats) -> Floats:
    """Return x * Phi(x), Phi being the normal distribution function: the exact GELU."""
    return np.multiply(x, 0.5 * (1 + erf(x * math.sqrt(0.5))))


def gelu_tanh(x: Floats) -> Floats:
    """Return GELU with Phi approximated by a tanh (gelu_new, gelu_pytorch_tanh)."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return np.multiply(x, 0.5 * (1 + np.tanh(inner)))


def quick_gelu(x: Floats) -> Floats:
    """Return x * sigmoid(1.702 x), the GELU of CLIP."""
    return x * sigmoid(1.702 * x)


def relu(x: Floats) -> Floats:
    """Return max(x, 0)."""
    return np.maximum(x, 0)


ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = MappingProxyType(
    {
        "silu": silu,
        "gelu": gelu,
        "gelu_tanh": gelu_tanh,
        "quick_gelu": quick_gelu,
        "relu": relu,
    }
)


CLAMP = 7.0  # of clamped SwiGLU


def gated(gate: Floats, up: Floats, act: str) -> Floats:
    """Return act(gate) * up, the inside of a gated MLP (Shazeer 2020, "GLU Variants").

    "clamped_swiglu" is quick_gelu(min(gate, 7)) * (1 + up within ±7) (gpt-oss).
    """
    if act == "clamped_swiglu":
        inner: Floats = quick_gelu(np.minimum(gate, CLAMP)) * (np.clip(up, -CLAMP, CLAMP) + 1)
        return inner
    return ACTIVATIONS[act](gate) * up


def softcap(x: Floats, cap: float) -> Floats:
    """Return cap * tanh(x / cap): numbers held within ±cap (Gemma 2)."""
    return cap * np.tanh(x / cap)


def softmax(x: Floats) -> Floats:
    """Return exp(x) over its sum along the last axis, of which at least one must be finite."""
    weights = np.exp(x - x.max(-1, keepdims=True))
    y: Floats = weights / weights.sum(-1, keepdims=True)
    return y


def log_softmax(x: Floats) -> Floats:
    """Return the logarithm of `softmax`, without the overflow and underflow of its parts."""
    shifted = x - x.max(-1, keepdims=True)
    y: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return y


def erf(x: Floats) -> Floats:
    """Return the error function, within 2e-16 of the truth in float64 and 1e-7 in float32.

    numpy has none, and math.erf takes numbers one by one. Here the nearest multiple of 1/64, where
    math.erf is asked once, is the centre of a Taylor polynomial in h, |h| <= 1/128: terms beyond
    the seventh power (float64) or the third (float32) are lost in rounding.
    """
    degree = 7 if x.dtype == np.float64 else 3
    size = np.minimum(np.abs(x), _ERF_ONE)
    nearest = np.rint(np.nan_to_num(size) / _ERF_STEP).astype(np.intp)
    h = size - nearest.astype(x.dtype) * x.dtype.type(_ERF_STEP)
    *rest, value = (terms.astype(x.dtype)[nearest] for terms in _erf_terms()[: degree + 1][::-1])
    y = np.zeros_like(h)
    for term in rest:
        y = (y + term) * h
    signed: Floats = np.copysign(y + value, x)
    return signed


@cache
def _erf_terms() -> Floats:
    """[8 N]: Taylor coefficients of erf about every multiple of the step, lowest power first.

    The derivative g = 2/sqrt(pi) exp(-x²) obeys g' = -2 x g, which gives its coefficients a_n by
    (n + 1) a_(n+1) = -2 (x a_n + a_(n-1)); those of erf follow by integration.
    """
    centre = np.arange(_ERF_ONE / _ERF_STEP + 1) * _ERF_STEP
    derivative = [2 / math.sqrt(math.pi) * np.exp(-(centre**2))]
    derivative.append(-2 * centre * derivative[0])
    for n in range(1, 6):
        derivative.append(-2 * (centre * derivative[n] + derivative[n - 1]) / (n + 1))
    values = np.array([math.erf(x) for x in centre.tolist()])
    return np.array([values, *(a / (n + 1) for n, a in enumerate(derivative))])
