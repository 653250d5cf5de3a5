"""Rows of 64 scores as vectors: what stays of them, their largest and their sums.

Loops over rows in memory stay scalar, or wait for what they have just written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba.core import types

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.vectors import Builder, Value, intrinsic
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, LANES, PANEL, STEP_BYTES

_Join: TypeAlias = Callable[[Builder, Value, Value], Value]

NOTHING_SEEN = np.float32(-3e38)  # the peak before the first score: finite, so exp() stays so
TOGETHER = 4  # rows whose scores are softened together

OF_ROWS = ir.VectorType(v.F32, TOGETHER)
_ZERO = np.float32(0)


@intrinsic
def keep_only(_context: Any, _scores: Any, _first: Any, _stop: Any, _other: Any) -> Any:
    """Write `other` over the 64 float32 at an address, but for those from `first` to `stop`."""

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        scores, first, stop, other = arguments
        low, high = (v.splat(b, b.trunc(bound, v.I32)) for bound in (first, stop))
        for block in range(PANEL // LANES):
            place = v.at(b, scores, BLOCK_BYTES * block)
            lanes = ir.Constant(v.I32X16, list(range(LANES * block, LANES * (block + 1))))
            is_kept = b.and_(b.icmp_signed("<=", low, lanes), b.icmp_signed("<", lanes, high))
            kept = b.select(is_kept, v.load(b, v.F32X16, place), v.splat(b, other))
            v.store(b, kept, place)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3, types.float32), emit


@intrinsic
def find_peaks(_context: Any, _scores: Any, _count: Any, _peaks: Any, _before: Any) -> Any:
    """Raise TOGETHER peaks to the largest of `count` scores of theirs; write the old ones less the
    new.
    """

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        scores, count, peaks, before = arguments
        rows = _seen_rows(b, scores, count, NOTHING_SEEN)
        old = v.load(b, OF_ROWS, peaks)
        peak = larger_lanes(b, old, by_rows(b, rows, larger_lanes))
        v.store(b, peak, peaks)
        v.store(b, b.fsub(old, peak), before)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit


@intrinsic
def add_totals(_context: Any, _weights: Any, _count: Any, _totals: Any, _kept: Any) -> Any:
    """Multiply TOGETHER totals by what is kept and add `count` weights to each."""

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        weights, count, totals, kept = arguments
        sums = by_rows(b, _seen_rows(b, weights, count, _ZERO), sum_of_lanes)
        before = b.fmul(v.load(b, OF_ROWS, totals), v.load(b, OF_ROWS, kept))
        v.store(b, b.fadd(before, sums), totals)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit


def _seen_rows(b: Builder, at: Value, count: Value, other: np.float32) -> list[list[Value]]:
    """Return the vectors of TOGETHER rows of scores, `other` in place of those from `count` on."""
    last = v.splat(b, b.trunc(count, v.I32))
    rows: list[list[Value]] = [[] for _ in range(TOGETHER)]
    for block in range(PANEL // LANES):
        lanes = ir.Constant(v.I32X16, list(range(LANES * block, LANES * (block + 1))))
        is_seen = b.icmp_signed("<", lanes, last)
        for number, row in enumerate(rows):
            place = v.at(b, at, STEP_BYTES * number + BLOCK_BYTES * block)
            found = v.load(b, v.F32X16, place)
            row.append(b.select(is_seen, found, v.constant(v.F32X16, float(other))))
    return rows


def by_rows(b: Builder, rows: list[list[Value]], join: _Join) -> Value:
    """Return what joins the numbers of each row, by lanes first, as `total` adds them."""
    first, second, third, fourth = (_joined(b, row, join) for row in rows)
    pairs = _joined_halves(b, first, second, 8, join), _joined_halves(b, third, fourth, 8, join)
    fours = _joined_halves(b, *pairs, 4, join)
    for apart in (2, 1):
        swapped = v.shuffled(b, fours, fours, [lane ^ apart for lane in range(LANES)])
        fours = join(b, fours, swapped)
    return v.shuffled(b, fours, fours, [LANES // TOGETHER * row for row in range(TOGETHER)])


def _joined(b: Builder, row: list[Value], join: _Join) -> Value:
    """Join the vectors of a row, of 64 numbers the first half, the second, then both."""
    while len(row) > 1:
        pairs = zip(row[:-1:2], row[1::2], strict=True)
        row = [*(join(b, *pair) for pair in pairs), *row[len(row) // 2 * 2 :]]
    return row[0]


def _joined_halves(b: Builder, one: Value, other: Value, width: int, join: _Join) -> Value:
    """Join lanes `width` apart of two vectors: first those of the one, then of the other."""
    lanes = [lane for lane in range(2 * LANES) if lane & width == 0]
    low = v.shuffled(b, one, other, lanes)
    return join(b, low, v.shuffled(b, one, other, [lane + width for lane in lanes]))


def larger_lanes(b: Builder, x: Value, y: Value) -> Value:
    """Return the larger numbers, lane by lane."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def sum_of_lanes(b: Builder, x: Value, y: Value) -> Value:
    """Return the sums, lane by lane."""
    return b.fadd(x, y)


@intrinsic
def total(_context: Any, _scores: Any) -> Any:
    """Return the sum of the 64 float32 at an address, by lanes first; a loop stays scalar."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        places = [v.at(b, arguments[0], BLOCK_BYTES * block) for block in range(PANEL // LANES)]
        sums = [v.load(b, v.F32X16, place) for place in places]
        while len(sums) > 1:
            sums = [b.fadd(*pair) for pair in zip(sums[::2], sums[1::2], strict=True)]
        (lanes,) = sums
        while lanes.type.count > 1:
            lanes = b.fadd(*v.halves(b, lanes))
        return b.extract_element(lanes, v.I32(0))

    return types.float32(types.int64), emit
