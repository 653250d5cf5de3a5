"""Codes of a weight as the words of its file hold them, unpacked to one per byte on demand.

A GPU unpacks them in a hundredth of the time that cores take, and half a byte is carried to it
instead of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.load.quantised.bits import WORD_BITS, centred, unpack_stream


@dataclass(frozen=True, slots=True)
class PackedCodes:
    """Codes of a weight[N K] in words of 32 bits, each of which holds 32 / bits of a line.

    words      int32 [lines W], or [W lines] where `is_down`
    bits       of a code: 2, 4 or 8
    is_down    whether a word's codes lie below one another
    is_turned  whether lines are columns of the weight, so that a word holds codes of several rows
    order      the field of a word, counted from the lowest bits, of each code in turn
    middle     what is subtracted from what is stored
    """

    words: NDArray[np.generic]
    bits: int
    is_down: bool = False
    is_turned: bool = False
    order: Sequence[int] | None = None
    middle: int = 0

    @property
    def per_word(self) -> int:
        """Codes of a word."""
        return WORD_BITS // self.bits

    @property
    def shape(self) -> tuple[int, ...]:
        """The weight's, [N K]."""
        words, lines = self.words.shape if self.is_down else self.words.shape[::-1]
        length = words * self.per_word
        return (length, lines) if self.is_turned else (lines, length)

    @property
    def size(self) -> int:
        """The number of codes."""
        return self.words.size * self.per_word

    def __len__(self) -> int:
        """Return N."""
        return self.shape[0]

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Return some of the codes, unpacked; of a slice of rows, (..., rows, :), no others are."""
        rows = index[-2] if isinstance(index, tuple) else index
        if not isinstance(rows, slice):
            return np.asarray(self)[index]  # type: ignore[no-any-return]
        start, stop, _ = rows.indices(len(self))
        each = self.per_word if self.is_turned else 1  # rows of a word
        taken = slice(start // each, -(-stop // each))
        words = self.words[:, taken] if self.is_down != self.is_turned else self.words[taken]
        first = taken.start * each
        some: NDArray[Any] = np.asarray(replace(self, words=words))[start - first : stop - first]
        return some

    def __array__(
        self,
        dtype: np.dtype[Any] | None = None,
        copy: bool | None = None,  # numpy asks with it; it is always a new array
    ) -> NDArray[Any]:
        """Return codes [N K], uint8, or int8 where a middle was subtracted."""
        words = self.words.T if self.is_down else self.words
        codes = unpack_stream(words, self.bits, words.shape[1] * self.per_word)
        if self.order is not None:
            fields = codes.reshape(*words.shape, self.per_word)
            codes = fields[..., list(self.order)].reshape(codes.shape)
        if self.is_turned:
            codes = np.ascontiguousarray(codes.T)
        made: NDArray[Any] = centred(codes, self.middle) if self.middle else codes
        return made if dtype is None else made.astype(dtype, copy=False)


def codes_of_words(
    words: NDArray[np.generic],
    bits: int,
    columns: int,
    *,
    is_down: bool = False,
    middle: int = 0,
) -> PackedCodes | NDArray[Any]:
    """Return codes [N columns] of words [N W], or [W N] where `is_down`; an array where words end
    within a code or a row within a word.
    """
    packed = PackedCodes(words, bits, is_down=is_down, middle=middle)
    if WORD_BITS % bits == 0 and packed.shape[1] == columns:
        return packed
    codes = unpack_stream(words.T if is_down else words, bits, columns)
    return centred(codes, middle) if middle else codes
