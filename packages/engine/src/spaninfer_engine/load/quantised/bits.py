"""Codes of a few bits that lie in words of 32, the first in the lowest bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.load.tensors.threads import in_threads

WORD_BITS = 32

_WORDS_AT_ONCE = 1 << 18  # their codes stay in a core's cache


def unpack_stream(words: NDArray[np.generic], bits: int, count: int) -> NDArray[np.uint8]:
    """Return codes [... count] of words [... W] that hold them without gaps, across words too.

    Large arrays are unpacked by several threads, each some rows; they may be views that are not
    contiguous, of mapped files.
    """
    if words.ndim < 2 or words.size <= _WORDS_AT_ONCE:
        return _unpack(words, bits, count)
    codes = np.empty((*words.shape[:-1], count), np.uint8)

    def fill(rows: slice) -> None:
        codes[rows] = _unpack(words[rows], bits, count)

    in_threads(fill, len(words), max(1, _WORDS_AT_ONCE * len(words) // words.size))
    return codes


def _unpack(words: NDArray[np.generic], bits: int, count: int) -> NDArray[np.uint8]:
    if WORD_BITS % bits == 0:
        return unpack_words(words, bits, count)
    data = np.ascontiguousarray(words).view(np.uint8)
    ones = np.unpackbits(data, axis=-1, bitorder="little", count=bits * count)
    groups = ones.reshape(*words.shape[:-1], count, bits)
    codes: NDArray[np.uint8] = (groups << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.uint8)
    return codes


def unpack_words(words: NDArray[np.generic], bits: int, count: int) -> NDArray[np.uint8]:
    """Return codes [... count] of words [... W] with as many in each as it holds whole."""
    if 8 % bits == 0:
        return _unpack_bytes(np.ascontiguousarray(words).view(np.uint8), bits)[..., :count]
    each = WORD_BITS // bits
    shifts = np.arange(each, dtype=np.uint32) * np.uint32(bits)
    fields = np.ascontiguousarray(words).view(np.uint32)[..., None] >> shifts
    codes = (fields & np.uint32((1 << bits) - 1)).astype(np.uint8)
    return codes.reshape(*words.shape[:-1], -1)[..., :count]


def _unpack_bytes(data: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return codes of 1, 2, 4 or 8 bits of bytes, in a tenth of the time that words take."""
    codes = np.empty((*data.shape, 8 // bits), np.uint8)
    for place in range(8 // bits):
        np.right_shift(data, np.uint8(bits * place), out=codes[..., place])
    codes &= np.uint8((1 << bits) - 1)
    return codes.reshape(*data.shape[:-1], -1)


def centred(codes: NDArray[np.uint8], middle: int) -> NDArray[np.int8]:
    """Return codes less their middle, in the memory of theirs."""
    codes -= np.uint8(middle)
    return codes.view(np.int8)


def unpack_pairs(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return codes [... 2n] of bytes [... n]: even ones in the low halves."""
    halves = np.stack([data & np.uint8(15), data >> np.uint8(4)], -1)
    return halves.reshape(*data.shape[:-1], -1)
