"""Matmuls with weights as checkpoints store them: [outputs, inputs]."""

from __future__ import annotations

import numpy as np

from spaninfer_op_reference.arrays import Floats


def linear(x: Floats, weight: Floats, bias: Floats | None = None) -> Floats:
    """[T O]: x[T C] @ weight[O C].T + bias[O]."""
    y = x @ weight.T
    return y if bias is None else y + bias


def head_linear(x: Floats, weight: Floats) -> Floats:
    """[T H B]: x[T H A] @ weight[H A B], head by head (the two halves of MLA's absorbed form)."""
    return (x.swapaxes(0, 1) @ weight).swapaxes(0, 1)


def scale_rows(x: Floats, factors: Floats) -> Floats:
    """[T C]: row t of x[T C] times factors[t]."""
    return x * factors[:, None]


def normalize_rows(x: Floats) -> Floats:
    """[T C]: rows of x[T C] over their length, or over 1e-12 if shorter (Baichuan 2's head)."""
    y: Floats = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
    return y
