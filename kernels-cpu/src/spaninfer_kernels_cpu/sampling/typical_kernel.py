"""Locally typical sampling, for Numba functions to call (Meister et al. 2022).

The fewest tokens that together have a mass, those first whose surprise -log p is closest to its
expectation, the entropy. They are not sorted: the distance up to which they reach is found digit by
digit, as in a radix sort of floating-point bits, from the mass in each bin. That takes seven passes
over the candidates however many are kept; sorting them takes longer from some hundred on.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import bits_of
from spaninfer_kernels_cpu.codegen.exponential import exp

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Doubles = NDArray[np.float64]

NUM_SUMS: Final = 2048  # bins of 11 bits; a distance has 31, its sign being 0
_SHIFTS: Final = (20, 9, 0)
_WIDTHS: Final = (11, 11, 9)


@device_function
def keep_typical(
    logits: Floats, ids: Ints, count: int, mass: np.float64, distances: Floats, sums: Doubles
) -> int:
    """Keep the typical ones of `count` tokens where they are, in their order; return how many.

    `ids` are rising: of tokens equally far from the entropy, the smaller ids stay. `distances` is
    room for as many numbers, `sums` for NUM_SUMS.
    """
    total = 0.0
    for i in range(count):
        total += np.float64(exp(logits[i]))
    shift = np.float32(math.log(total))
    entropy = 0.0
    for i in range(count):
        log_p = logits[i] - shift
        entropy -= np.float64(exp(log_p)) * np.float64(log_p)
    for i in range(count):
        distances[i] = abs(shift - logits[i] - np.float32(entropy))
    farthest, below = _reach(logits, shift, count, mass, distances, sums)
    kept = 0
    for i in range(count):
        bits = np.int64(bits_of(distances[i]))
        logits[kept], ids[kept] = logits[i], ids[i]
        if bits < farthest:
            kept += 1
        elif bits == farthest and below < mass:
            below += np.float64(exp(logits[i] - shift))
            kept += 1
    return kept


@device_function
def _reach(
    logits: Floats,
    shift: np.float32,
    count: int,
    mass: np.float64,
    distances: Floats,
    sums: Doubles,
) -> tuple[int, float]:
    """Return the bits of the distance with which the mass is reached, and the mass nearer by.

    Where rounding keeps all tokens from having the mass, the distance is beyond all of them.
    """
    below, prefix = 0.0, 0
    for level in range(3):
        low, width = _SHIFTS[level], _WIDTHS[level]
        for bin in range(1 << width):
            sums[bin] = 0.0
        for i in range(count):
            bits = np.int64(bits_of(distances[i]))
            if bits >> (low + width) == prefix:
                sums[(bits >> low) & ((1 << width) - 1)] += np.float64(exp(logits[i] - shift))
        found = -1
        for bin in range(1 << width):
            if below + sums[bin] >= mass:
                found = bin
                break
            below += sums[bin]
        if found < 0:
            return 1 << 31, below
        prefix = (prefix << width) | found
    return prefix, below
