"""Codes of a few bits that lie in words of 32, the first in the lowest bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 32


def unpack_stream(words: NDArray[np.generic], bits: int, count: int) -> NDArray[np.uint8]:
    """Return codes [... count] of words [... W] that hold them without gaps, across words too."""
    if WORD_BITS % bits == 0:
        return unpack_words(words, bits, count)
    data = np.ascontiguousarray(words).view(np.uint8)
    ones = np.unpackbits(data, axis=-1, bitorder="little", count=bits * count)
    groups = ones.reshape(*words.shape[:-1], count, bits)
    codes: NDArray[np.uint8] = (groups << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.uint8)
    return codes


def unpack_words(words: NDArray[np.generic], bits: int, count: int) -> NDArray[np.uint8]:
    """Return codes [... count] of words [... W] with as many in each as it holds whole."""
    each = WORD_BITS // bits
    shifts = np.arange(each, dtype=np.uint32) * np.uint32(bits)
    fields = np.ascontiguousarray(words).view(np.uint32)[..., None] >> shifts
    codes = (fields & np.uint32((1 << bits) - 1)).astype(np.uint8)
    return codes.reshape(*words.shape[:-1], -1)[..., :count]


def unpack_pairs(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return codes [... 2n] of bytes [... n]: even ones in the low halves."""
    halves = np.stack([data & np.uint8(15), data >> np.uint8(4)], -1)
    return halves.reshape(*data.shape[:-1], -1)
