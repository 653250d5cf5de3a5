"""The division of a head among the lanes of a warp, as in csrc/head.cuh."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

_LOAD_BYTES = 16
_WARP = 32


@dataclass(frozen=True, slots=True)
class HeadDivision:
    """Elements of a load, and the lanes that share a head, each with units of two loads."""

    vector: int
    lanes: int


def divide_head(itemsize: int, size: int, rotary_len: int = 0) -> HeadDivision:
    """Return the division of a head of `size` elements, `rotary_len` of which rope rotates.

    Loads are as wide as 16 bytes and half of either number allow; lanes are a power of two, with
    one unit each where a warp suffices. Both numbers are even.

    >>> divide_head(2, 128, rotary_len=64)
    HeadDivision(vector=8, lanes=8)
    """
    vector = gcd(_LOAD_BYTES // itemsize, size // 2, rotary_len // 2)
    units = size // (2 * vector)
    return HeadDivision(vector, lanes=min(1 << (units - 1).bit_length(), _WARP))
