"""Rounding to number formats that numpy does not have."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_op_reference.arrays import Floats, Ints


def to_bfloat16(x: Floats | Ints) -> NDArray[np.float32]:
    """Return x rounded to the nearest bfloat16, ties to even, as float32.

    A bfloat16 is the upper half of a float32. Adding just under half of its unit, or half where
    the last kept bit is 1, carries into it as rounding demands; NaN is left as it is.
    """
    number = np.asarray(x, np.float32)
    bits = number.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    upper = (bits + odd + np.uint32(0x7FFF)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(number), number, upper.view(np.float32))


E4M3_MOST = 448.0
"""The largest e4m3 number: 1.75 * 2^8; what would be 2^9 - 2^5 means NaN."""

_E4M3_LEAST_EXPONENT = -6  # below 2^-6, numbers keep the spacing that they have there
_E4M3_MANTISSA_BITS = 3


def to_e4m3(x: Floats) -> Floats:
    """Return x rounded to the nearest number of 8 bits, ties to even, ±448 beyond that.

    Micikevicius et al. 2022, "FP8 Formats for Deep Learning": 4 bits of exponent, 3 of mantissa.
    """
    held = np.clip(x, -E4M3_MOST, E4M3_MOST)
    exponent = np.frexp(held)[1] - 1  # frexp's fractions are below 1, those of formats from 1 on
    least = np.maximum(exponent, _E4M3_LEAST_EXPONENT) - _E4M3_MANTISSA_BITS
    rounded: Floats = np.ldexp(np.rint(np.ldexp(held, -least)), least)
    return rounded
