"""Sizes of a top-k -> the elements that are sampled, and the blocks that read a row. Pure.

Of s elements at random places in a row of n, the r-th largest is a bound that fewer than k elements
reach only if r of the sample are among the k largest. Their number is binomial with mean ks/n, so
Chernoff's inequality says how large r must be; likewise, how many elements may reach the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, exp, log

from spaninfer_kernel_launch import ShapeError

THREADS = 1024  # of every block, as in keys.cuh
HELD = 8 * THREADS  # keys that a block holds in its registers
MAX_K = 4096
MAX_LENGTH = 2**31 - 1

_FAILURE = 1e-12  # per row; then one block selects alone, correctly but slowly
_LOAD_BYTES = 16
_SAMPLES = tuple(1024 << n for n in range(4))
_SAMPLERS = tuple(8 << n for n in range(5))  # blocks that sample a long row
_MAX_SAMPLES = 1 << 17  # of all of them: 4 times as many take longer than they save
_GATHER, _OF_SAMPLER = 5000, 45  # the cost of offers, in sampled elements: a model
_FIXED_LOADS = 3  # a block's cost beside reading, in loads of all its threads: a model


@dataclass(frozen=True, slots=True)
class Division:
    """The division of a row that is longer than a block can hold.

    `samplers` blocks look at `samples` elements each; `least` of all those samples give a bound,
    for which each block offers `offered` keys, or the bound if it is alone. At most `capacity`
    elements of the row may reach the bound; `blocks` blocks read the row.
    """

    samples: int
    samplers: int
    least: int
    offered: int
    capacity: int
    blocks: int


def divide(rows: int, length: int, k: int, itemsize: int, sm_count: int) -> Division | None:
    """Return the division of rows of `length` elements; None where one block holds a row.

    Raises ShapeError for unsupported sizes.
    """
    check(rows, length, k)
    if length <= HELD:
        return None
    samples, samplers = min(
        _ways_to_sample(rows, length, k, sm_count),
        key=lambda way: _sampling_cost(way[0], way[1], length, k),
    )
    sampled = samples * samplers
    least = least_for(k * sampled / length)
    capacity = min(length, ceil(_enough_for(least + least // 8) * length / sampled))
    return Division(
        samples=samples,
        samplers=samplers,
        least=least,
        offered=1 if samplers == 1 else least + least // 8,
        capacity=capacity,
        blocks=_blocks(rows, length * itemsize, sm_count),
    )


def check(rows: int, length: int, k: int) -> None:
    """Raise ShapeError for unsupported sizes."""
    if not 1 <= k <= MAX_K:
        raise ShapeError(f"k is {k}; at least 1, at most {MAX_K}")
    if not k <= length <= MAX_LENGTH:
        raise ShapeError(f"rows have {length} elements; at least k = {k}, at most {MAX_LENGTH}")
    if not 0 <= rows <= 65535:
        raise ShapeError(f"{rows} rows; at most 65535, the second axis of a grid")


def least_for(mean: float) -> int:
    """Return a count that a binomial number with this mean reaches once in 10^12 samples.

    >>> least_for(1.0), least_for(100.0)
    (16, 186)
    """
    count = ceil(mean) + 1
    while _chernoff(count, mean) > _FAILURE:
        count += 1 + count // 64
    return count


def _enough_for(most: int) -> float:
    """Return a mean with which a binomial number is at most `most` once in 10^12 samples."""
    mean = most + 1.0
    while _chernoff(most, mean) > _FAILURE:
        mean *= 1 + 1 / 64
    return mean


def _chernoff(count: float, mean: float) -> float:
    """Return a bound on the chance that a binomial number lies as far from its mean as `count`."""
    return exp(count - mean - count * log(count / mean))


def _ways_to_sample(rows: int, length: int, k: int, sm_count: int) -> Iterator[tuple[int, int]]:
    """Yield samples of a block and numbers of blocks, for all rows at once."""
    for samples in _SAMPLES:
        yield samples, 1
    for samplers in _SAMPLERS:
        samples = min(HELD, _MAX_SAMPLES // samplers)
        least = least_for(k * samplers * samples / length)
        offered = least + least // 8
        is_few = offered < samples and samplers * offered <= HELD
        if is_few and rows * samplers <= sm_count and 2 * samplers * samples <= length:
            yield samples, samplers


def _sampling_cost(samples: int, samplers: int, length: int, k: int) -> float:
    """Return cycles, roughly: one per element of a block's sample, two per key collected."""
    gather = _GATHER + _OF_SAMPLER * samplers if samplers > 1 else 0
    return samples + gather + 2 * _expected(samples * samplers, length, k)


def _expected(samples: int, length: int, k: int) -> float:
    """Return how many elements of a row will reach the bound that `samples` give."""
    least = least_for(k * samples / length)
    return (least + least / 16) * length / samples


def _blocks(rows: int, row_bytes: int, sm_count: int) -> int:
    """Return how many blocks read a row so that the last multiprocessor is done soonest.

    A block fills a multiprocessor; `loads` counts rounds in which all its threads load.
    """
    loads = ceil(row_bytes / (_LOAD_BYTES * THREADS))
    most = min(loads, max(1, 4 * sm_count // max(rows, 1)))

    def done(blocks: int) -> int:
        return ceil(rows * blocks / sm_count) * (ceil(loads / blocks) + _FIXED_LOADS)

    return min(range(1, most + 1), key=done)
