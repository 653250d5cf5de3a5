"""ALiBi: a bias on scores that grows with the distance of the key (Press et al. 2021)."""

from __future__ import annotations

import math

import numpy as np

from spaninfer_op_reference.arrays import Floats, Ints
from spaninfer_op_reference.rounding import to_bfloat16


def alibi_slopes(heads: int) -> Floats:
    """[H] in float64: the slope of each head.

    With p the largest power of two in `heads`: 2^(-8 i / p) for i = 1 .. p; heads beyond p get
    every other one of the 2 p slopes that 2 p heads would have, starting with the first.
    """
    power = 2 ** math.floor(math.log2(heads))
    first = np.arange(1, power + 1) / power
    beyond = np.arange(1, 2 * (heads - power), 2) / (2 * power)
    slopes: Floats = np.exp2(-8 * np.concatenate([first, beyond]))
    return slopes


def alibi_bias(slopes: Floats, key_positions: Ints) -> Floats:
    """[H N]: slope * j (Bloom), which softmax cannot tell from slope * (j - i)."""
    return np.multiply.outer(slopes, key_positions)


def falcon_alibi_bias(slopes: Floats, key_positions: Ints, scale: float) -> Floats:
    """[H N]: scale * slope * j in bfloat16: slope, position and product are rounded (Falcon).

    From 257 on, not every position is a bfloat16.
    """
    product = to_bfloat16(slopes)[:, None] * to_bfloat16(key_positions)
    return to_bfloat16(product) * np.float32(scale)
