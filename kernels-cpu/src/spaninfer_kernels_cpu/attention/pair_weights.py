"""Scores of a few queries as weights of bfloat16, in registers from the one to the other.

What is rounded by up to 2^-8 needs no exponential that is exact to the last place: one within 8e-5
of the weight takes 10 operations instead of 17. In `attend_block.soften` every step reads and
writes scores in memory, which takes as long as the arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import types

from spaninfer_kernels_cpu.attention.attend_block import Scratch
from spaninfer_kernels_cpu.attention.score_vectors import (
    NOTHING_SEEN,
    OF_ROWS,
    TOGETHER,
    by_rows,
    larger_lanes,
    sum_of_lanes,
)
from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.exponential import COARSE_POWERS, LOG2_E, ROUNDER
from spaninfer_kernels_cpu.codegen.vectors import Builder, Value, intrinsic
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, LANES, STEP_BYTES

_LOWEST = -125.0  # of powers of two that are float32, even if they come out a little too small
_EXPONENT_BITS = 23  # where it begins


@dataclass(frozen=True, slots=True)
class Blocks(Constant):
    """How many blocks of 16 a query's scores are."""

    count: int


_ONE, _TWO, _THREE, _FOUR = (Blocks(count) for count in range(1, 5))


@device_function
def weigh_as_pairs(num_queries: int, count: int, scratch: Scratch) -> None:
    """Write weights e**(score - peak) of queries that see `count` scores, in bfloat16.

    Rows stay where they begin. Behind the last key they are any finite numbers. Peaks, totals and
    what is kept are those of `attend_block.Scratch`, and of some rows behind the last query.
    """
    if count <= LANES:
        _weigh_rows(_ONE, num_queries, count, scratch)
    elif count <= 2 * LANES:
        _weigh_rows(_TWO, num_queries, count, scratch)
    elif count <= 3 * LANES:
        _weigh_rows(_THREE, num_queries, count, scratch)
    else:
        _weigh_rows(_FOUR, num_queries, count, scratch)


@device_function
def _weigh_rows(blocks: Blocks, num_queries: int, count: int, scratch: Scratch) -> None:
    for n in range(0, num_queries, TOGETHER):
        at, of_rows = scratch.scores + n * STEP_BYTES, n * 4
        peaks, totals = scratch.peak + of_rows, scratch.total + of_rows
        _weigh(blocks, at, count, peaks, totals, scratch.kept + of_rows)


@intrinsic
def _weigh(
    _context: Any, blocks: Any, _scores: Any, _count: Any, _peaks: Any, _totals: Any, _kept: Any
) -> Any:
    """Turn the scores of TOGETHER rows into weights; raise their peaks, add to their totals, and
    write what a higher peak leaves of what they have gathered so far.
    """
    num_blocks: int = blocks.value.count

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, scores, count, peaks, totals, kept = arguments
        rows = _scores_of(b, num_blocks, scores, count)
        old = v.load(b, OF_ROWS, peaks)
        peak = larger_lanes(b, old, by_rows(b, rows, larger_lanes))
        v.store(b, peak, peaks)

        less = b.fmul(peak, v.constant(OF_ROWS, -float(LOG2_E)))
        weights = [powers(b, row, lane_of(b, less, number)) for number, row in enumerate(rows)]

        before = powers(b, [repeated(b, old)], repeated(b, less))[0]
        before = v.shuffled(b, before, before, range(TOGETHER))
        v.store(b, before, kept)
        gathered = b.fmul(v.load(b, OF_ROWS, totals), before)
        v.store(b, b.fadd(gathered, by_rows(b, weights, sum_of_lanes)), totals)
        for number, row in enumerate(weights):
            store_narrowed(b, row, v.at(b, scores, STEP_BYTES * number))
        return context.get_dummy_value()

    return types.void(blocks, *[types.int64] * 5), emit


def _scores_of(b: Builder, num_blocks: int, at: Value, count: Value) -> list[list[Value]]:
    """Return the scores of TOGETHER rows, NOTHING_SEEN in place of those from `count` on."""
    last = LANES * (num_blocks - 1)
    lanes = ir.Constant(v.I32X16, list(range(last, last + LANES)))
    is_seen = b.icmp_signed("<", lanes, v.splat(b, b.trunc(count, v.I32)))
    rows = []
    for number in range(TOGETHER):
        places = [v.at(b, at, STEP_BYTES * number + BLOCK_BYTES * n) for n in range(num_blocks)]
        row = [v.load(b, v.F32X16, place) for place in places]
        row[-1] = b.select(is_seen, row[-1], v.constant(v.F32X16, float(NOTHING_SEEN)))
        rows.append(row)
    return rows


def powers(b: Builder, numbers: list[Value], less: Value) -> list[Value]:
    """Return e**number * 2**less, 2^-125 where that would be less."""
    lowest = v.constant(v.F32X16, _LOWEST)
    rounder, log2_e = (v.constant(v.F32X16, float(number)) for number in (ROUNDER, LOG2_E))
    found = []
    for number in numbers:
        power = v.fma(b, number, log2_e, less)
        power = b.select(b.fcmp_ordered("<", power, lowest), lowest, power)
        shifted = b.fadd(power, rounder)
        rest = b.fsub(power, b.fsub(shifted, rounder))
        result = v.constant(v.F32X16, float(COARSE_POWERS[0]))
        for factor in COARSE_POWERS[1:]:
            result = v.fma(b, result, rest, v.constant(v.F32X16, float(factor)))
        whole = b.shl(b.bitcast(shifted, v.I32X16), v.constant(v.I32X16, _EXPONENT_BITS))
        found.append(b.bitcast(b.add(b.bitcast(result, v.I32X16), whole), v.F32X16))
    return found


def lane_of(b: Builder, numbers: Value, lane: int) -> Value:
    """Return a lane of OF_ROWS in all lanes of a vector."""
    return v.shuffled(b, numbers, numbers, [lane] * LANES)


def repeated(b: Builder, numbers: Value) -> Value:
    """Return OF_ROWS over and over."""
    return v.shuffled(b, numbers, numbers, [lane % TOGETHER for lane in range(LANES)])


def store_narrowed(b: Builder, row: list[Value], place: Value) -> None:
    """Write vectors of weights as bfloat16, side by side."""
    for number, weights in enumerate(row):
        v.store(b, v.to_bf16(b, weights), v.at(b, place, BLOCK_BYTES // 2 * number))
