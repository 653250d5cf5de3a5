"""Random numbers that are a function of a counter and a key: Philox4x32-10.

Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3". There is no state
between numbers, so sampling can be repeated, on any machine and in any batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_op_reference.arrays import Ints

Words = NDArray[np.uint64]  # 32-bit words, in 64 bits so that products fit

_LOW = np.uint64(0xFFFF_FFFF)
_SHIFT = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD251_1F53), np.uint64(0xCD9E_8D57)
_WEYL = 0x9E37_79B9, 0xBB67_AE85  # the golden ratio and sqrt(3) - 1, as fractions of 2^32
_ROUNDS = 10
_BELOW_ONE = np.float32(1 - 2.0**-24)


def philox(counter: Ints, key: Ints) -> Words:
    """Return the random words [4 ...] of counter[4 ...] under key[2 ...], all of them 32 bits."""
    x0, x1, x2, x3 = counter.astype(np.uint64)
    k0, k1 = key.astype(np.uint64)
    for step in range(_ROUNDS):
        left, right = _MULTIPLIERS[0] * x0, _MULTIPLIERS[1] * x2
        bump0, bump1 = (np.uint64(weyl * step & 0xFFFF_FFFF) for weyl in _WEYL)
        x0, x1, x2, x3 = (
            (right >> _SHIFT) ^ x1 ^ ((k0 + bump0) & _LOW),
            right & _LOW,
            (left >> _SHIFT) ^ x3 ^ ((k1 + bump1) & _LOW),
            left & _LOW,
        )
    return np.stack([x0, x1, x2, x3])


def uniform(seed: int, position: int, token_ids: Ints) -> NDArray[np.float32]:
    """[N]: for each of token_ids[N] a number in (0, 1) that decides about it at a position.

    It depends on seed (64 bits), position and token id, and on nothing else: neither on the batch
    nor on which other tokens are asked about. The key is [low, high] of the seed, the counter
    [token // 4, 0, low, high of the position], and token % 4 names the word w of the four. The
    number is (w + 1/2) / 2^32 as float32, whose steps are finest near 0, and at most 1 - 2^-24.
    """
    block = token_ids >> 2
    is_new = np.diff(block, prepend=-1) != 0  # neighbours of one block share its words
    counter = np.zeros((4, np.count_nonzero(is_new)), np.uint64)
    counter[0] = block[is_new]
    counter[2:] = np.array(_halves(position))[:, None]
    words = philox(counter, np.array(_halves(seed)))[token_ids & 3, np.cumsum(is_new) - 1]
    number: NDArray[np.float32] = ((words + 0.5) * 2.0**-32).astype(np.float32)
    return np.minimum(number, _BELOW_ONE)


def _halves(number: int) -> tuple[int, int]:
    """Return the low and the high 32 bits."""
    return number & 0xFFFF_FFFF, number >> 32 & 0xFFFF_FFFF
