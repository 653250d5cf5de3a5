"""Normalisation along the last axis: of rows x[T C], or of heads x[T H D]."""

from __future__ import annotations

import numpy as np

from spaninfer_op_reference.arrays import Floats


def rms_norm(x: Floats, weight: Floats, eps: float, plus_one: bool = False) -> Floats:
    """Return x over its root mean square, times weight[C], or times 1 + weight (Gemma).

    Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """
    mean_square = (x * x).mean(-1, keepdims=True)
    y: Floats = x / np.sqrt(mean_square + eps)
    return np.multiply(y, np.add(weight, 1) if plus_one else weight)


def layer_norm(x: Floats, weight: Floats, bias: Floats | None, eps: float) -> Floats:
    """Return x centred and over its standard deviation, times weight[C], plus bias[C].

    Ba, Kiros and Hinton 2016, "Layer Normalization".
    """
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    y: Floats = centred / np.sqrt(variance + eps) * weight
    return y if bias is None else y + bias
