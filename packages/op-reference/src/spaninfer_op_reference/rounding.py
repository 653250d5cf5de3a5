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
