"""Token masks: the tokens that a sequence may continue with, as bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.errors import InvalidMask
from spaninfer_engine.plan import NewSequence
from spaninfer_engine.request import Matcher, TokenMask

Bools = NDArray[np.bool_]
Bits = NDArray[np.uint8]


class _FunctionMask:
    """The mask of a caller's function, which looks at all tokens anew.

    A read-only array is packed once, however often it is returned.
    """

    def __init__(self, function: TokenMask, vocab: int) -> None:
        self._function, self._vocab = function, vocab
        self._fixed: Bools | None = None
        self._packed: Bits | None = None  # `_fixed`

    def fill(self, output_ids: NDArray[np.int32], bits: Bits) -> None:
        """Write the tokens that the function allows; all of them where it returns None.

        Raises InvalidMask for a result of another shape or type, and whatever the function raises.
        """
        found, vocab = self._function(output_ids), self._vocab
        if found is None:
            bits[:] = 0xFF
            return
        packed = self._packed if found is self._fixed else None
        if packed is None:
            is_array = isinstance(found, np.ndarray)
            if not (is_array and found.dtype == np.bool_ and found.shape == (vocab,)):
                got = f"{found.dtype} {found.shape}" if is_array else type(found)
                raise InvalidMask(
                    f"a token mask returned {got}; it returns bool ({vocab},) or None"
                )
            packed = np.packbits(found, bitorder="little")
            self._fixed, self._packed = (found, packed) if _is_fixed(found) else (None, None)
        bits[: len(packed)] = packed


def _is_fixed(array: Bools) -> bool:
    """Return True if the array's memory is read-only, also by what it is a view of."""
    if array.flags.writeable or array.base is None:
        return not array.flags.writeable
    return isinstance(array.base, np.ndarray) and not array.base.flags.writeable


def mask_of(sequence: NewSequence, vocab: int) -> Matcher | None:
    """Return what masks the tokens of a sequence: a grammar, a caller's function, or nothing."""
    sampling = sequence.sampling
    if sequence.grammar is not None:
        return sequence.grammar.matcher(sequence.end_ids, sampling.min_tokens)
    return None if sampling.mask is None else _FunctionMask(sampling.mask, vocab)


def allowed_by(mask: Matcher, output_ids: NDArray[np.int32], vocab: int) -> Bools:
    """Return the allowed tokens [V] behind the tokens sampled so far."""
    (bits,) = all_tokens(1, vocab)
    mask.fill(output_ids, bits)
    return np.unpackbits(bits, count=vocab, bitorder="little").view(np.bool_)


def all_tokens(num_masks: int, vocab: int) -> Bits:
    """Return masks [M, 4 ceil(V / 32)] that allow everything: whole words of 32 bits."""
    return np.full((num_masks, -(-vocab // 32) * 4), 0xFF, np.uint8)
