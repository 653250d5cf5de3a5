"""Quantisation to 8 and 4 bits: codes, scales and zero points.

Asymmetric codes q stand for (q - zero) * scale; symmetric ones for q * scale. Codes are int8 or
uint8, one per byte, and `pack_nibbles` puts two 4-bit codes into one; codes of `quantize_fp8` are
the numbers that they are as e4m3.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spaninfer_op_reference.arrays import Floats, Ints
from spaninfer_op_reference.rounding import E4M3_MOST, to_e4m3

Q8_0_BLOCK = 32
"""Numbers that share a scale in GGUF's Q8_0."""

_MIN_SCALE = 1e-5  # of cached vectors: constant ones still get a scale to divide by


class CodeRange(Enum):
    """Smallest and largest code of an asymmetric format."""

    INT8 = (-128, 127)
    UINT8 = (0, 255)
    UINT4 = (0, 15)

    def codes(self, x: Floats) -> Ints:
        """Return the nearest codes; even ones in the middle, the ends beyond them."""
        first, last = self.value
        codes: Ints = np.rint(np.clip(x, first, last)).astype(np.int8 if first < 0 else np.uint8)
        return codes


class Quantized(NamedTuple):
    """Codes of an asymmetric format; scale and zero broadcast against them."""

    codes: Ints
    scale: Floats
    zero: Floats

    def dequantize(self) -> Floats:
        """Return (codes - zero) * scale."""
        return np.multiply(self.codes - self.zero, self.scale)


def quantize_weight(weight: Floats, codes: CodeRange, group: int | None = None) -> Quantized:
    """Return the codes of weight[O C] as [O G C/G], one scale and zero [O G 1] per group.

    A group is a whole row, or `group` neighbours of a row; C must be a multiple of it. The zero is
    not rounded, so that minimum and maximum are met exactly; constant groups get the scale 1.
    """
    grouped = weight.reshape(len(weight), -1, group or weight.shape[1])
    least, most = grouped.min(-1, keepdims=True), grouped.max(-1, keepdims=True)
    first, last = codes.value
    scale = (most - least) / (last - first)
    scale = np.where(scale == 0, 1, scale).astype(weight.dtype)
    zero = first - least / scale
    return Quantized(codes.codes(grouped / scale + zero), scale, zero)


def quantize_cache(x: Floats, codes: CodeRange) -> Quantized:
    """Return the codes of keys or values x[T K D], one scale and zero [T K 1] per token and head.

    The range of a vector includes 0, whose code, the zero, is a whole number: channels that are
    zero stay so.
    """
    least = np.minimum(x.min(-1, keepdims=True), 0)
    most = np.maximum(x.max(-1, keepdims=True), 0)
    first, last = codes.value
    scale = np.maximum((most - least) / (last - first), _MIN_SCALE).astype(x.dtype)
    zero = np.rint(np.clip(first - least / scale, first, last))
    return Quantized(codes.codes(x / scale + zero), scale, zero)


def quantize_rows(x: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return symmetric codes of activations x[T C] and their scales [T 1]: largest size / 127."""
    scale = np.abs(x).max(-1, keepdims=True) / 127
    scale = np.where(scale == 0, 1, scale).astype(x.dtype)
    return np.rint(x / scale).astype(np.int8), scale


def quantize_fp8(x: Floats) -> tuple[Floats, Floats]:
    """Return x[... C] over its scales, rounded to e4m3, and the scales [... 1]: largest size / 448.

    For rows of activations and for cached vectors alike.
    """
    scale = np.abs(x).max(-1, keepdims=True) / x.dtype.type(E4M3_MOST)
    scale = np.where(scale == 0, 1, scale).astype(x.dtype)
    return to_e4m3(x / scale), scale


def quantize_q8_0(x: Floats, group: int = Q8_0_BLOCK) -> tuple[NDArray[np.int8], Floats]:
    """Return codes [... G group] and scales [... G 1] of x[... C], C a multiple of `group`.

    Symmetric, scale = largest size / 127, in float32 as llama2.c keeps it; GGUF then rounds scales
    to float16, but not before dividing by them. Halves round away from zero.
    """
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, group)
    scale = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    return _round_half_away(blocks * inverse).astype(np.int8), scale


def dequantize_q8_0(codes: NDArray[np.int8], scale: Floats) -> NDArray[np.float32]:
    """Return codes[... G group] * scale[... G 1] as [... C] in float32."""
    blocks = codes.astype(np.float32) * scale.astype(np.float32)
    return blocks.reshape(*codes.shape[:-2], -1)


def pack_nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return codes[... C] below 16 two by two, [... C/2]: even ones in the low half of a byte."""
    return codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)


def unpack_nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the codes [... 2 B] of packed[... B]."""
    halves = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], -1)
    return halves.reshape(*packed.shape[:-1], -1)


def _round_half_away(x: Floats) -> Floats:
    size = np.abs(x)
    whole = np.floor(size)
    rounded: Floats = np.copysign(whole + (size - whole >= 0.5), x)
    return rounded
