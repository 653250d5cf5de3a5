"""Token masks: the tokens that a sequence may continue with, as bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.errors import InvalidMask
from spaninfer_engine.request.request import FilledMasks, MaskJob, Matcher, TokenMask
from spaninfer_engine.step.plan import NewSequence

Bools = NDArray[np.bool_]
Bits = NDArray[np.uint8]
Allowed = NDArray[np.bool_ | np.uint8]


class _FunctionMask(Matcher):
    """The mask of a caller's function, which looks at all tokens anew.

    A read-only array is packed once, however often it is returned, and by however many sequences.
    """

    def __init__(self, function: TokenMask, vocab: int) -> None:
        self._function, self._vocab = function, vocab
        self._kept: _Kept | None = None

    def fill(self, output_ids: NDArray[np.int32], bits: Bits) -> Bits:
        """Return the tokens that the function allows; all of them where it returns None.

        Raises InvalidMask for a result of another shape or type, and whatever the function raises.
        """
        found = self._function(output_ids)
        if found is None:
            bits[:] = 0xFF
            return bits
        if self._kept is None or self._kept.array is not found:
            self._kept = _shared.get(id(found))  # which no other array has while it is there
        if self._kept is not None:
            return self._kept.bits
        packed = self._packed(found)
        bits[: len(packed)] = packed
        if not _is_fixed(found):
            return bits
        self._kept = _shared[id(found)] = _Kept(found, bits)
        return self._kept.bits

    def _packed(self, found: Allowed) -> Bits:
        vocab, num_bytes = self._vocab, -(-self._vocab // 8)
        if isinstance(found, np.ndarray):
            if found.dtype == np.bool_ and found.shape == (vocab,):
                return np.packbits(found, bitorder="little")
            if found.dtype == np.uint8 and found.shape == (num_bytes,):
                return found.view(np.uint8)
            got = f"{found.dtype} {found.shape}"
        else:
            got = f"{type(found)}"
        raise InvalidMask(
            f"a token mask returned {got}; it returns bool ({vocab},), "
            f"bits of it as uint8 ({num_bytes},), or None"
        )


class _Kept:
    """An array that never changes, and its bits."""

    def __init__(self, array: Allowed, bits: Bits) -> None:
        self.array, self.bits = array, bits.copy()
        self.bits.setflags(write=False)


_shared: WeakValueDictionary[int, _Kept] = WeakValueDictionary()
"""By id of the array; each is there as long as the mask of some sequence has it."""


def _is_fixed(array: Allowed) -> bool:
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


def begin_masks(jobs: Sequence[MaskJob], bits: Bits) -> FilledMasks | Callable[[], FilledMasks]:
    """Return the mask of each job, or why it has none, those of one class filled together; or what
    waits for them, where other threads have begun to fill some.
    """
    kinds = {type(job.matcher) for job in jobs}
    if len(kinds) == 1:
        return kinds.pop().begin_all(jobs, bits)
    parts = [(kind, [job for job in jobs if type(job.matcher) is kind]) for kind in kinds]
    begun = [(own, kind.begin_all(own, bits)) for kind, own in parts]

    def filled() -> FilledMasks:
        found = dict[int, Bits | Exception]()
        for own, masks in begun:
            rows = (job.row for job in own)
            found |= zip(rows, masks() if callable(masks) else masks, strict=True)
        return [found[job.row] for job in jobs]

    return filled if any(callable(masks) for _, masks in begun) else filled()


def allowed_tokens(jobs: Sequence[MaskJob], vocab: int) -> tuple[Bools, dict[int, Exception]]:
    """Return the allowed tokens [M V] of jobs, one per row, and why a row has no mask.

    Rows that have none allow everything.
    """
    bits = all_tokens(len(jobs), vocab)
    filled = begin_masks(jobs, bits)
    errors = dict[int, Exception]()
    for job, found in zip(jobs, filled() if callable(filled) else filled, strict=True):
        if isinstance(found, Exception):
            errors[job.row] = found
            bits[job.row] = 0xFF
        elif not found.flags.writeable:
            bits[job.row] = found
    return np.unpackbits(bits, axis=1, count=vocab, bitorder="little").view(np.bool_), errors


def all_tokens(num_masks: int, vocab: int) -> Bits:
    """Return masks [M, 4 ceil(V / 32)] that allow everything: whole words of 32 bits."""
    return np.full((num_masks, -(-vocab // 32) * 4), 0xFF, np.uint8)
