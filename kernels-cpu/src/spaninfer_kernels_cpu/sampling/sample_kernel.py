"""Sampling from a row of logits, for Numba functions to call: spaninfer_op_reference.sample.

Penalties change the row in place; the draw is the race of `sample` with the same random numbers,
so that both choose the same token but where rounding decides about a cut.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import larger, smaller
from spaninfer_kernels_cpu.codegen.exponential import exp
from spaninfer_kernels_cpu.sampling.top_k_kernel import select_largest
from spaninfer_kernels_cpu.sampling.typical_kernel import Doubles, keep_typical

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Words = NDArray[np.uint32]

REACH: Final = np.float32(26.0)  # a token further below the largest never wins the race
COLDEST: Final = np.float32(1e-5)  # a temperature below is none: the largest wins
_FIRST_LOOK: Final = 64  # most sets of top tokens are smaller
_NOTHING: Final = np.float32(-np.inf)
_ZERO: Final = np.float32(0)
_ONE: Final = np.float32(1)


class Sampling(NamedTuple):
    """Sampling parameters of a row; top_k 0, typical_p 1, top_p 1 and min_p 0 truncate nothing."""

    temperature: np.float32
    top_k: int
    typical_p: np.float32
    top_p: np.float32
    min_p: np.float32
    seed: np.uint64
    position: np.uint64


class Candidates(NamedTuple):
    """Room for tokens[V] and their logits, for as many in order, for words[4 ceil(V / 4)], and for
    sums[NUM_SUMS].

    One caller's alone.
    """

    logits: Floats
    ids: Ints
    largest: Floats
    largest_ids: Ints
    words: Words
    sums: Doubles


class Penalties(NamedTuple):
    """Penalties that `penalize` applies; 1, 0 and 0 change nothing."""

    repetition: np.float32
    presence: np.float32
    frequency: np.float32


@device_function
def penalize(
    logits: Floats,
    prompt: Ints,
    output: Ints,
    penalties: Penalties,
    counts: Ints,
) -> None:
    """Lower the logits[V] of ids that occur in prompt and output.

    Repetition divides those of either once, or multiplies negative ones (Keskar et al. 2019); then
    presence + frequency * (how often it is in the output) is subtracted. counts[V] is 0 before and
    after.
    """
    repetition = penalties.repetition
    for token in output:
        counts[token] += 1
    if repetition != 1:
        for token in output:
            if counts[token] > 0:
                logits[token] = _penalized(logits[token], repetition)
                counts[token] = -counts[token]
        for token in prompt:
            if counts[token] == 0:
                logits[token] = _penalized(logits[token], repetition)
                counts[token] = -1 - len(output)  # seen in the prompt alone
    for token in output:
        count = abs(counts[token])
        if count > 0:
            logits[token] -= penalties.presence + penalties.frequency * np.float32(count)
        counts[token] = 0
    for token in prompt:
        counts[token] = 0


@device_function
def _penalized(logit: np.float32, penalty: np.float32) -> np.float32:
    return logit * penalty if logit < 0 else logit / penalty


@device_function
def sample(logits: Floats, sampling: Sampling, room: Candidates) -> int:
    """Return the token of logits[V], -1 if none can be chosen: NaN, or every one masked."""
    best = _largest(logits)
    if best < 0 or not np.isfinite(logits[best]):
        return -1
    if sampling.temperature < COLDEST:
        return best
    count = _within_reach(logits, logits[best], sampling.temperature, room)
    values, ids = room.logits, room.ids
    top_k = sampling.top_k
    if sampling.typical_p < 1:
        if top_k > 0:
            count = _keep_top_k(top_k, count, room)
            top_k = 0
        typical_p = np.float64(sampling.typical_p)
        count = keep_typical(room.logits, room.ids, count, typical_p, room.largest, room.sums)
    if top_k > 0 or sampling.top_p < 1:
        count = _top_tokens(top_k, sampling.top_p, count, room)
        values, ids = room.largest, room.largest_ids
    floor = np.float32(math.log(sampling.min_p)) if sampling.min_p > 0 else _NOTHING
    return _winner(values, ids, count, floor, sampling, room.words)


@device_function
def _largest(logits: Floats) -> int:
    """Return the smallest id of the largest logit, -1 if one is NaN."""
    bad = 0
    for i in range(len(logits)):
        bad |= logits[i] != logits[i]
    if bad == 0:
        largest = _most(logits)
        for i in range(len(logits)):
            if logits[i] == largest:
                return i
    return -1


@device_function
def _most(numbers: Floats) -> np.float32:
    most = _NOTHING
    for i in range(len(numbers)):
        most = larger(most, numbers[i])
    return most


@device_function
def _within_reach(
    logits: Floats, largest: np.float32, temperature: np.float32, room: Candidates
) -> int:
    """Write tokens and their logits over the temperature, the largest being 0; return how many."""
    count = 0
    for i in range(len(logits)):
        x = (logits[i] - largest) / temperature
        room.logits[count], room.ids[count] = x, i
        count += x >= -REACH
    return count


@device_function
def _keep_top_k(top_k: int, count: int, room: Candidates) -> int:
    """Keep the `top_k` most likely of `count` candidates where they are; return how many."""
    found = _select(count, smaller(count, top_k), room)
    if found == 0:
        return 0
    least, least_id = room.largest[found - 1], room.largest_ids[found - 1]
    kept = 0
    for i in range(count):
        x, number = room.logits[i], room.ids[i]
        room.logits[kept], room.ids[kept] = x, number
        kept += x > least or (x == least and number <= least_id)
    return kept


@device_function
def _top_tokens(top_k: int, top_p: np.float32, count: int, room: Candidates) -> int:
    """Write what top-k and then top-p leave of `count` candidates, largest first."""
    most = smaller(count, top_k) if top_k > 0 else count
    if top_p >= 1:
        return _select(count, most, room)
    look = most if top_k > 0 else smaller(most, _FIRST_LOOK)
    total = _ZERO
    if top_k <= 0:
        for i in range(count):
            total += exp(room.logits[i])
    while True:
        found = _select(count, look, room)
        if top_k > 0:
            for i in range(found):
                total += exp(room.largest[i])
        mass = 0.0
        for i in range(found):
            mass += np.float64(exp(room.largest[i]) / total)
            if mass >= top_p:
                return i + 1
        if found == most:
            return found
        look = smaller(most, 4 * look)


@device_function
def _select(count: int, most: int, room: Candidates) -> int:
    return select_largest(room.logits, room.ids, count, room.largest, room.largest_ids, most)


# ---- the race ----------------------------------------------------------------------------------

_SHIFT = np.uint64(32)
_LEFT, _RIGHT = np.uint64(0xD251_1F53), np.uint64(0xCD9E_8D57)
_WEYL_0, _WEYL_1 = np.uint32(0x9E37_79B9), np.uint32(0xBB67_AE85)
_ROUNDS = 10
_UNIT = 2.0**-32
_BELOW_ONE = np.float32(1 - 2.0**-24)


@device_function
def _winner(
    logits: Floats, ids: Ints, count: int, floor: np.float32, sampling: Sampling, words: Words
) -> int:
    """Return the id whose logit + Gumbel number is the largest, of logits from `floor` on.

    The Gumbel number is -log(E), E = -log(1 - u). As E > u, a token can only win if u is below
    e**(logit - best): two logarithms are spared for all but a few.
    """
    best, winner = -np.inf, -1
    seed, position = np.uint64(sampling.seed), np.uint64(sampling.position)
    if count > _FIRST_LOOK:
        philox(0, len(words) >> 2, position, seed, words)
    for i in range(count):
        if logits[i] < floor:
            continue
        number = int(ids[i])
        if count <= _FIRST_LOOK:
            philox(number >> 2, (number >> 2) + 1, position, seed, words)
        word = np.float64(words[(number & 3) * (len(words) >> 2) + (number >> 2)])
        u = np.float64(smaller(np.float32((word + 0.5) * _UNIT), _BELOW_ONE))
        behind = np.float64(logits[i]) - best
        if behind < -1 and u > 1.001 * np.float64(exp(np.float32(behind))):
            continue
        score = np.float64(logits[i]) - math.log(-math.log1p(-u))
        if score > best or (score == best and number < winner):
            best, winner = score, number
    return winner


@device_function
def philox(start: int, stop: int, position: np.uint64, seed: np.uint64, words: Words) -> None:
    """Write the words of Philox4x32-10 that decide about tokens 4 start to 4 stop.

    words[4 N]: first those of tokens 0, 4, 8, …, then those of 1, 5, 9, …

    Salmon et al. 2011. The counter is [token // 4, 0, low, high of the position], the key [low,
    high] of the seed. Straight-line code over 32-bit words, which LLVM turns into vector code: 84
    µs for 151,936 tokens against 650 in 64-bit ones (EPYC Zen 3, 2026-11-21).
    """
    quarter = len(words) >> 2
    for block in range(start, stop):
        x0, x1 = np.uint32(block), np.uint32(0)
        x2, x3 = np.uint32(position), np.uint32(position >> _SHIFT)
        k0, k1 = np.uint32(seed), np.uint32(seed >> _SHIFT)
        for _ in range(_ROUNDS):
            left, right = _LEFT * np.uint64(x0), _RIGHT * np.uint64(x2)
            x0, x1, x2, x3 = (
                np.uint32(np.uint32(right >> _SHIFT) ^ x1 ^ k0),
                np.uint32(right),
                np.uint32(np.uint32(left >> _SHIFT) ^ x3 ^ k1),
                np.uint32(left),
            )
            k0, k1 = np.uint32(k0 + _WEYL_0), np.uint32(k1 + _WEYL_1)
        words[block], words[quarter + block] = x0, x1
        words[2 * quarter + block], words[3 * quarter + block] = x2, x3
