"""Scores as weights of bfloat16, of rows of which each sees some keys of a block and not others.

As `pair_weights`, for rows longer than registers hold: once over their scores for the peaks, once
for the weights. Steps of 32 keys that four rows see have no masks; what is hidden weighs 0.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types

from spaninfer_kernels_cpu.attention.attend_block import Block, Scratch, Softmax, Task, seen_keys
from spaninfer_kernels_cpu.attention.pair_weights import lane_of, powers, repeated, store_narrowed
from spaninfer_kernels_cpu.attention.score_vectors import (
    NOTHING_SEEN,
    OF_ROWS,
    TOGETHER,
    by_rows,
    larger_lanes,
    sum_of_lanes,
)
from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.exponential import LOG2_E
from spaninfer_kernels_cpu.codegen.inline_function import always_inline
from spaninfer_kernels_cpu.codegen.vectors import Builder, Value, intrinsic
from spaninfer_kernels_cpu.gemm.register_tile import packed_tuple, tuple_of, unpacked_tuple
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, LANES

STEP_KEYS: Final = 32  # a row of a tile of weights
BLOCK_KEYS: Final = 128
SCORE_BYTES: Final = BLOCK_KEYS * 4  # of a row; weights take the first half

_STEP_BLOCKS: Final = STEP_KEYS // LANES
_LEAST_PEAK: Final = -1e38  # of a row that has seen nothing: what is subtracted stays finite
_ZERO: Final = np.float32(0)
_MASK: Final = ir.VectorType(ir.IntType(1), STEP_KEYS)
_VECTORS: Any = tuple_of(v.FLOATS, TOGETHER)
_BOUNDS: Any = tuple_of(types.int64, TOGETHER)


class Rows(NamedTuple):
    """Queries [first, first + num_queries) of a task, and the keys of a block that they see: none
    before `start` or from `stop` on, which are multiples of 32.
    """

    first: int
    num_queries: int
    start: int
    stop: int


@device_function
@always_inline
def weigh_seen(
    row: int, rows: Rows, block: Block, task: Task, softmax: Softmax, scratch: Scratch
) -> None:
    """Turn scores[count 128] of four rows from `row` on into weights in bfloat16, each row from
    where it begins.

    Peaks, totals and what is kept are those of `attend_block.Scratch`, and of up to three rows
    behind the last. Inlined, constants stay in registers: texts of 28 tokens attend in 0.95 of the
    time.
    """
    n = rows.first + row
    first_0, stop_0 = seen_keys(n, block, task, softmax)
    first_1, stop_1 = seen_keys(n + 1, block, task, softmax)
    first_2, stop_2 = seen_keys(n + 2, block, task, softmax)
    first_3, stop_3 = seen_keys(n + 3, block, task, softmax)
    first, stop = (first_0, first_1, first_2, first_3), (stop_0, stop_1, stop_2, stop_3)
    at = scratch.scores + row * SCORE_BYTES
    highest: Any = _four_of(NOTHING_SEEN)
    for key in range(rows.start, rows.stop, STEP_KEYS):
        if first_3 <= key and key + STEP_KEYS <= stop_0:  # all four see all of the step
            highest = _higher(highest, at + 4 * key)
        else:
            highest = _higher_seen(highest, at + 4 * key, key, first, stop)
    peaks, totals, kept = scratch.peak + 4 * n, scratch.total + 4 * n, scratch.kept + 4 * n
    less: Any = _raise_peaks(highest, peaks, totals, kept)
    sums: Any = _four_of(_ZERO)
    for key in range(rows.start, rows.stop, STEP_KEYS):
        if first_3 <= key and key + STEP_KEYS <= stop_0:
            sums = _weigh(sums, less, at + 4 * key, at + 2 * key)
        else:
            sums = _weigh_seen(sums, less, at + 4 * key, at + 2 * key, key, first, stop)
    _add_totals(sums, totals)


# ---- intrinsics of four rows ---------------------------------------------------------------------


@intrinsic
def _four_of(_context: Any, _number: Any) -> Any:
    """Return a number in all lanes of a vector for each row."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        return packed_tuple(b, [v.splat(b, arguments[0])] * TOGETHER)

    return _VECTORS(types.float32), emit


@intrinsic
def _higher(_context: Any, _highest: Any, _scores: Any) -> Any:
    """Return the larger of each lane and the scores of a step."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        highest, scores = arguments
        return _peaks(b, unpacked_tuple(b, highest), _step_at(b, scores))

    return _VECTORS(_VECTORS, types.int64), emit


@intrinsic
def _higher_seen(
    _context: Any, _highest: Any, _scores: Any, _key: Any, _first: Any, _stop: Any
) -> Any:
    """Return the same of the scores that rows see; the step's first key is number `key`."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        highest, scores, *bounds = arguments
        nothing = v.constant(v.F32X16, float(NOTHING_SEEN))
        steps = _seen_only(b, _step_at(b, scores), nothing, *bounds)
        return _peaks(b, unpacked_tuple(b, highest), steps)

    return _VECTORS(_VECTORS, types.int64, types.int64, _BOUNDS, _BOUNDS), emit


@intrinsic
def _raise_peaks(_context: Any, _highest: Any, _peaks: Any, _totals: Any, _kept: Any) -> Any:
    """Raise peaks to the largest lanes, write what that leaves of what rows have gathered so far,
    and leave so much of their totals; return what is added to powers of two of each row.
    """

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        highest, peaks, totals, kept = arguments
        old = v.load(b, OF_ROWS, peaks)
        found = by_rows(b, [[row] for row in unpacked_tuple(b, highest)], larger_lanes)
        peak = larger_lanes(b, old, found)
        v.store(b, peak, peaks)
        base = larger_lanes(b, peak, v.constant(OF_ROWS, _LEAST_PEAK))
        less = b.fmul(base, v.constant(OF_ROWS, -float(LOG2_E)))
        left = powers(b, [repeated(b, old)], repeated(b, less))[0]
        left = v.shuffled(b, left, left, range(TOGETHER))
        left = b.select(b.fcmp_ordered("==", old, peak), v.constant(OF_ROWS, 1.0), left)
        v.store(b, left, kept)
        v.store(b, b.fmul(v.load(b, OF_ROWS, totals), left), totals)
        return packed_tuple(b, [lane_of(b, less, row) for row in range(TOGETHER)])

    return _VECTORS(_VECTORS, *[types.int64] * 3), emit


@intrinsic
def _weigh(_context: Any, _sums: Any, _less: Any, _scores: Any, _out: Any) -> Any:
    """Write the weights of a step; return the sums and them."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        sums, less, scores, out = arguments
        return _added(b, unpacked_tuple(b, sums), _weights_of(b, scores, less), out)

    return _VECTORS(_VECTORS, _VECTORS, *[types.int64] * 2), emit


@intrinsic
def _weigh_seen(
    _context: Any,
    _sums: Any,
    _less: Any,
    _scores: Any,
    _out: Any,
    _key: Any,
    _first: Any,
    _stop: Any,
) -> Any:
    """Write the weights of a step, 0 of what a row does not see; return the sums and them."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        sums, less, scores, out, *bounds = arguments
        weights = _seen_only(b, _weights_of(b, scores, less), v.constant(v.F32X16, 0.0), *bounds)
        return _added(b, unpacked_tuple(b, sums), weights, out)

    return _VECTORS(_VECTORS, _VECTORS, *[types.int64] * 3, _BOUNDS, _BOUNDS), emit


@intrinsic
def _add_totals(_context: Any, _sums: Any, _totals: Any) -> Any:
    """Add the lanes of the sums to the totals of their rows."""

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        sums, totals = arguments
        found = by_rows(b, [[row] for row in unpacked_tuple(b, sums)], sum_of_lanes)
        v.store(b, b.fadd(v.load(b, OF_ROWS, totals), found), totals)
        return context.get_dummy_value()

    return types.void(_VECTORS, types.int64), emit


def _step_at(b: Builder, scores: Value) -> list[list[Value]]:
    """Return the scores of a step of each row."""
    offsets = [
        [SCORE_BYTES * row + BLOCK_BYTES * n for n in range(_STEP_BLOCKS)]
        for row in range(TOGETHER)
    ]
    return [[v.load(b, v.F32X16, v.at(b, scores, offset)) for offset in row] for row in offsets]


def _weights_of(b: Builder, scores: Value, less: Value) -> list[list[Value]]:
    steps = zip(_step_at(b, scores), unpacked_tuple(b, less), strict=True)
    return [powers(b, row, base) for row, base in steps]


def _seen_only(
    b: Builder, steps: list[list[Value]], other: Value, key: Value, first: Value, stop: Value
) -> list[list[Value]]:
    """Return the steps of rows, `other` in place of keys that one does not see.

    A mask of bits is scalar arithmetic, for which vectors leave room; comparing lanes is not.
    """
    bounds = zip(unpacked_tuple(b, first), unpacked_tuple(b, stop), strict=True)
    seen = []
    for row, ends in zip(steps, bounds, strict=True):
        low, high = (b.shl(v.I64(1), _within_step(b, b.sub(end, key))) for end in ends)
        bits = b.trunc(b.and_(b.sub(high, v.I64(1)), b.neg(low)), v.I32)
        halves = v.halves(b, b.bitcast(bits, _MASK))
        seen.append([b.select(*pair, other) for pair in zip(halves, row, strict=True)])
    return seen


def _within_step(b: Builder, key: Value) -> Value:
    """Return 0 to STEP_KEYS, whichever is nearest."""
    key = b.select(b.icmp_signed("<", key, v.I64(0)), v.I64(0), key)
    return b.select(b.icmp_signed("<", key, v.I64(STEP_KEYS)), key, v.I64(STEP_KEYS))


def _peaks(b: Builder, highest: list[Value], steps: list[list[Value]]) -> Value:
    peaks = [
        larger_lanes(b, larger_lanes(b, *row), old) for row, old in zip(steps, highest, strict=True)
    ]
    return packed_tuple(b, peaks)


def _added(b: Builder, sums: list[Value], weights: list[list[Value]], out: Value) -> Value:
    """Write weights of rows; return the sums and them."""
    added = []
    for number, (row, before) in enumerate(zip(weights, sums, strict=True)):
        store_narrowed(b, row, v.at(b, out, SCORE_BYTES * number))
        added.append(b.fadd(before, b.fadd(*row)))
    return packed_tuple(b, added)
