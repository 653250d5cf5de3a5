"""The inner steps of GEMM with weights that are codes: int32 sums over a group of channels.

Intrinsics for `tile_gemm`, as in `register_tile`: each emits one straight line of code for a whole
tile. Codes come apart in registers (`code_unit`), a unit or half of one at a time.
"""

from __future__ import annotations

from typing import Any

from numba.core import types

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.vectors import Builder, Value, intrinsic
from spaninfer_kernels_cpu.gemm.code_unit import Unit, codes_of
from spaninfer_kernels_cpu.gemm.dot_product import DOTS, in_order, spread
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.gemm.register_tile import (
    Values,
    packed_tuple,
    places_of,
    tile_of,
    unpacked_tuple,
)


@intrinsic
def start_dots(_context: Any, kind: Any, rows: Any, _offset: Any) -> Any:
    """Return int32 sums that begin at - offset * (sum of the row's codes in the group).

    Weights so count from the number that stands for 0. At rows + offset lie the group's parameters
    (`quantize_activations`).
    """
    tile = tile_of(v.INTS, kind)

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, addresses, offset = arguments
        starts = []
        for address in unpacked_tuple(b, addresses):
            start = v.load(b, v.I32, v.at(b, b.add(address, offset), 8))
            starts += [v.splat(b, start)] * kind.value.blocks
        return packed_tuple(b, starts)

    return tile(kind, rows, types.int64), emit


@intrinsic
def add_dots(
    _context: Any, kind: Any, part: Any, dots: Any, _weights: Any, rows: Any, _offset: Any
) -> Any:
    """Return dots + the products of a part of a unit of codes."""
    micro: MicroKernel = kind.value
    steps = part.value.steps(codes_of(micro))

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, _, tile, weights, addresses, offset = arguments
        x = [b.add(address, offset) for address in unpacked_tuple(b, addresses)]
        return _added(b, Unit(b, micro, weights), tile, x, steps)

    return dots(kind, part, dots, types.int64, rows, types.int64), emit


@intrinsic
def add_half_dots(
    _context: Any, kind: Any, dots: Any, _weights: Any, _half: Any, rows: Any, _offset: Any
) -> Any:
    """Return dots + the products of the first half (0) of a unit of pairs or the second (1).

    The same code does either: a unit's two groups one after the other, with twice the code and
    their sums scaled in between, took 1.3 times as long (one row, EPYC Zen 3).
    """
    micro: MicroKernel = kind.value

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, weights, half, addresses, offset = arguments
        x = [b.add(address, offset) for address in unpacked_tuple(b, addresses)]
        return _added(b, Unit(b, micro, weights, half), tile, x, range(8))

    return dots(kind, dots, types.int64, types.int64, rows, types.int64), emit


def _added(b: Builder, unit: Unit, tile: Value, x: Values, steps: range) -> Value:
    """Return a tile of sums + products of some steps of a unit."""
    codes = codes_of(unit.micro)
    add = _add_words if codes.is_wide else _add_wide if codes.pairs_at_once == 0 else _add_small
    sums = unpacked_tuple(b, tile)
    if not unit.micro.by_blocks:
        return packed_tuple(b, add(b, unit, sums, x, steps))
    unit.ask(steps)
    each = [add(b, unit.block(n), [start], x, steps) for n, start in enumerate(sums)]
    return packed_tuple(b, [done for (done,) in each])


def _add_wide(b: Builder, unit: Unit, sums: Values, x: Values, steps: range) -> Values:
    """Products with numbers of 8 bits."""
    path = DOTS[unit.micro.isa_path]
    for step in steps:
        w = unit.factors(path, step)
        offset = 4 * unit.micro.channel_bytes * step
        codes = [path.activations(b, v.at(b, address, offset)) for address in x]
        sums = [path.add(b, sums[n], wj, xi) for n, wj, xi in places_of(w, codes)]
    return sums


def _add_words(b: Builder, unit: Unit, sums: Values, x: Values, steps: range) -> Values:
    """Products with numbers of 16 bits, two channels at a time."""
    path = DOTS[unit.micro.isa_path]
    for word in range(2 * steps.start, 2 * steps.stop):
        w = unit.words(word)
        pairs = [b.bitcast(spread(b, v.at(b, address, 4 * word)), v.I16X32) for address in x]
        sums = [path.add_pairs(b, sums[n], wj, xi) for n, wj, xi in places_of(w, pairs)]
    return sums


def _add_small(b: Builder, unit: Unit, sums: Values, x: Values, steps: range) -> Values:
    """Products with numbers of which 16 bits hold two at least."""
    path, weights = DOTS[unit.micro.isa_path], codes_of(unit.micro)
    at_once = weights.pairs_at_once
    if at_once == 1:
        return _add_ones(b, unit, sums, x, steps)
    # Not pairs, which come apart by look-ups: 192 rows at 110 Gop/s, in order at 77 to 105.
    keeps_order = unit.micro.isa_path == "madd" and not weights.is_paired
    for first in range(0, len(steps), at_once):
        running = [path.start_small(start) for start in sums]
        for step in steps[first : first + at_once]:
            w = unit.numbers(path, step)
            codes = [spread(b, v.at(b, address, 4 * step)) for address in x]
            for n, wj, xi in places_of(w, codes):
                running[n] = path.add_small(b, running[n], wj, xi)
                if keeps_order:
                    running[n] = in_order(b, running[n])
        sums = [path.end_small(b, old, new) for old, new in zip(sums, running, strict=True)]
    return sums


def _add_ones(b: Builder, unit: Unit, sums: Values, x: Values, steps: range) -> Values:
    """Products with numbers of which 16 bits hold two, row after row: they are widened at once."""
    path = DOTS[unit.micro.isa_path]
    sums = list(sums)
    for step in steps:
        codes = [spread(b, v.at(b, address, 4 * step)) for address in x]
        for n, wj, xi in places_of(unit.numbers(path, step), codes):
            sums[n] = path.end_small(
                b, sums[n], path.add_small(b, path.start_small(sums[n]), wj, xi)
            )
    return sums
