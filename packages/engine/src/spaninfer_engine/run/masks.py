"""Token masks: the tokens that a sequence may continue with, from a caller's function."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.errors import InvalidMask
from spaninfer_engine.request import TokenMask

Bools = NDArray[np.bool_]


def allowed_by(mask: TokenMask, output_ids: NDArray[np.int32], vocab: int) -> Bools | None:
    """Return the allowed tokens [V] behind the tokens sampled so far; None where all are.

    Raises InvalidMask for a result of another shape or type, and whatever the function raises.
    """
    found = mask(output_ids)
    if found is None:
        return None
    if not (isinstance(found, np.ndarray) and found.dtype == np.bool_ and found.shape == (vocab,)):
        got = f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else type(found)
        raise InvalidMask(f"a token mask returned {got}; it returns bool ({vocab},) or None")
    return found


def packed(allowed: list[Bools | None], vocab: int) -> NDArray[np.uint8]:
    """Return masks as bits [M, ceil(V / 8)], the lowest bit first."""
    rows = [np.ones(vocab, np.bool_) if each is None else each for each in allowed]
    return np.packbits(np.stack(rows), axis=1, bitorder="little")
