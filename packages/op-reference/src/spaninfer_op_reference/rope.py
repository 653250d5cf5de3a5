"""Rotary position embedding (Su et al. 2021, "RoFormer"): angles, and the rotation of vectors.

Models are trained with frequencies and angles in float32, whose rounding is visible at positions in
the tens of thousands: position 100 000 times a frequency near 1 is off by up to 0.004 radians.
Angles are therefore computed in the dtype of the frequencies; float64 shows the effect of rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from spaninfer_op_reference.arrays import Floats, Ints


def cos_sin(
    positions: Ints,
    inverse: Floats,
    factor: float = 1.0,
    sections: Sequence[int] = (),
    mrope_interleaved: bool = False,
) -> tuple[Floats, Floats]:
    """Return factor * cos and factor * sin, [T R/2] each, of the angles position * inverse[R/2].

    positions are [T], or [3 T] (time, row, column) where `sections` says how many frequencies each
    axis turns (M-RoPE): the first ones time, the next rows, the last columns (Qwen2-VL); or
    interleaved, t h w t h w ... while an axis has some left, and time for the rest (Qwen3-VL).
    """
    places = positions[:, None]
    if sections:
        places = positions[axes_of(sections, mrope_interleaved)].T
    angles = places.astype(inverse.dtype) * inverse
    return np.cos(angles) * factor, np.sin(angles) * factor


def rotate(x: Floats, cos: Floats, sin: Floats, style: str = "half") -> Floats:
    """[T H D]: the first R channels of x[T H D] rotated by cos[T R/2], sin[T R/2]; others kept.

    A pair is channels i and i + R/2 ("half", GPT-NeoX) or 2 i and 2 i + 1 ("interleaved", GPT-J).
    """
    if style not in ("half", "interleaved"):
        raise ValueError(f"style is {style!r}; allowed are 'half' and 'interleaved'")
    half = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    y = x.copy()
    step = (slice(0, half), slice(half, 2 * half))
    if style == "interleaved":
        step = (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    a, b = x[..., step[0]], x[..., step[1]]
    y[..., step[0]] = a * cos - b * sin
    y[..., step[1]] = b * cos + a * sin
    return y


def axes_of(sections: Sequence[int], mrope_interleaved: bool) -> Ints:
    """[R/2]: the position axis of each frequency."""
    if not mrope_interleaved:
        return np.repeat(np.arange(len(sections)), sections)
    axis = np.zeros(sum(sections), np.intp)
    for which in (1, 2):
        axis[which : 3 * sections[which] : 3] = which
    return axis


def logn(x: Floats, positions: Ints, base: int) -> Floats:
    """[T H D]: x[T H D] * max(1, log_base(position + 1)), for queries beyond `base` (Qwen-1)."""
    factor: Floats = np.maximum(np.log(positions + 1) / math.log(base), 1).astype(x.dtype)
    return np.multiply(x, factor[:, None, None])


def llama4_scale(x: Floats, positions: Ints, beta: float, length: int, offset: int = 0) -> Floats:
    """[T H D]: x[T H D] * (1 + beta * log(1 + floor((position + offset) / length))).

    Queries grow by a step per `length` positions (Llama 4, arXiv 2501.19399; Ministral 3).
    """
    steps = (positions + offset) // length
    factor: Floats = (1 + beta * np.log1p(steps)).astype(x.dtype)
    return np.multiply(x, factor[:, None, None])
