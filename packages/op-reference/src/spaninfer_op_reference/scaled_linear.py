"""Matmuls of 8-bit codes with scales for rows or for blocks."""

from __future__ import annotations

import numpy as np

from spaninfer_op_reference.arrays import Floats
from spaninfer_op_reference.linear import linear

SCALE_BLOCK = 128
"""Elements of a row of x, and rows and columns of the weight, that share a scale."""


def scaled_linear(
    x: Floats,
    weight: Floats,
    x_scales: Floats,
    weight_scales: Floats,
    bias: Floats | None = None,
) -> Floats:
    """[T O]: (x[T C] * x_scales[T]) @ (weight[O C] * weight_scales[O]).T + bias[O]."""
    return linear(x * x_scales[:, None], weight * weight_scales[:, None], bias)


def block_scaled_linear(
    x: Floats,
    weight: Floats,
    x_scales: Floats,
    weight_scales: Floats,
    bias: Floats | None = None,
    *,
    gated: bool = False,
) -> Floats:
    """[T O]: the same with x_scales[C/128 T] and weight_scales[O/128 C/128], rounded up.

    Blocks of a gated weight begin anew with its second half, as those of two matrices do.
    """
    outputs, inner = weight.shape
    of_x = np.repeat(x_scales.T, SCALE_BLOCK, axis=1)[:, :inner]
    halves = np.split(weight_scales, 2) if gated else [weight_scales]
    rows = [np.repeat(half, SCALE_BLOCK, axis=0)[: outputs // len(halves)] for half in halves]
    of_weight = np.repeat(np.concatenate(rows), SCALE_BLOCK, axis=1)[:, :inner]
    return linear(x * of_x, weight * of_weight, bias)
