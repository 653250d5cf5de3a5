"""The keys that rows of sparse attention read, for Numba functions to call: scores, and selection.

Defined by spaninfer_op_reference.select_keys. Scores of a block of 64 keys are GEMMs of
`attend_block`, summed over the indexer's heads in their order, so that a row gets the same bits
beside any others.
Of a row's scores, the largest are found by their bits: eleven at a time, from the highest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.array_view import floats_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import FLOAT32, bits_of, larger, read
from spaninfer_kernels_cpu.quantisation.layout import STEP_BYTES

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

DIGITS = 1 << 11  # counts that `select` is lent

_ZERO = np.float32(0)
_SIGN = 1 << 31
_REST = _SIGN - 1
_INFINITY = 0x7F800000


@device_function
def add_scores(products: int, weights: int, heads: int, out: int, count: int) -> None:
    """Add the sums over heads of weights[heads] * relu(products[heads 64]) to out[count]."""
    scores = floats_at(out, count)
    for head in range(heads):
        weight = read(FLOAT32, weights, head)
        row = floats_at(products + head * STEP_BYTES, count)
        for j in range(count):
            scores[j] += weight * larger(row[j], _ZERO)


@device_function
def select(scores: Floats, counts: Ints, found: Ints) -> None:
    """Write the positions of the largest scores to found[k], ascending; scores[N] has k or more.

    Of equal scores the lower position is selected; NaN is less than any number. counts[DIGITS] hold
    anything.
    """
    prefix, left = 0, len(found)  # ranks so far that have too few above them; how many lack then
    for digit in range(3):
        shift = 21 - 11 * digit if digit < 2 else 0
        bits = 11 if digit < 2 else 10
        prefix, left = _narrow(scores, counts, shift, bits, (prefix, left))
    size = 0
    for position in range(len(scores)):
        rank = _rank(scores[position])
        if rank > prefix or (rank == prefix and left > 0):
            left -= 1 if rank == prefix else 0
            found[size] = position
            size += 1


@device_function
def _narrow(
    scores: Floats, counts: Ints, shift: int, bits: int, before: tuple[int, int]
) -> tuple[int, int]:
    """Return the prefix with one digit more, and how many of those that have it are selected."""
    prefix, left = before
    counts[: 1 << bits] = 0
    for position in range(len(scores)):
        rank = _rank(scores[position]) >> shift
        if rank >> bits == prefix:
            counts[rank & ((1 << bits) - 1)] += 1
    digit = (1 << bits) - 1
    while counts[digit] < left:
        left -= counts[digit]
        digit -= 1
    return (prefix << bits) | digit, left


@device_function
def _rank(score: Any) -> int:
    """Return a number of 32 bits in the order of scores: 0 of NaN, the same of both zeros."""
    bits = bits_of(score)
    size: int = bits & _REST
    if size > _INFINITY:
        return 0
    return _REST - size if bits < 0 and size > 0 else _SIGN + size
