"""Products of many rows by codes whose scales are whole numbers, all of a record in integers.

Where scales lie under a scale of 256 channels (`quantisation.codes`), rows are quantised in groups
of as many. Then `vpmaddwd`, which adds pairs of 16-bit sums in any case, multiplies them by their
group's scale instead of by one, and sums become floats once in a record: what 32 channels of 8
outputs take is 17 instructions of vectors instead of 20, or 21 with a minimum.

Groups with minimums add these, times the sum of the group's activations, likewise. Where numbers
count from an offset, 16-bit sums begin with it times that sum: they are smaller then, if only in
the end, so that more of them are added up in 16 bits.

    room of a record's scales, 64 bytes each, of 16 outputs
        scales of groups, int16, each twice
        minimums of two groups each, int16, side by side
        what scales are times (float32), and what minimums are times

    end of a row, of each record (`quantize_row_in_parts`): its scale (float32), and of its groups
        the sums of activations (int16), or where 16-bit sums begin (twice int16)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numba.core import types

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.vectors import Builder, Value, intrinsic
from spaninfer_kernels_cpu.gemm.code_scales import RecordBits, ask_for_scales
from spaninfer_kernels_cpu.gemm.code_unit import Unit, codes_of
from spaninfer_kernels_cpu.gemm.dot_product import MADD, in_order, spread
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.gemm.register_tile import (
    Values,
    packed_tuple,
    places_of,
    tile_of,
    unpacked_tuple,
)
from spaninfer_kernels_cpu.quantisation.codes import OUTER_BITS, Codes
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES

_LOW = 0xFFFF

_Rows = tuple[Values, Values | None]


@intrinsic
def write_whole_scales(_context: Any, kind: Any, _parameters: Any, _block: Any, _room: Any) -> Any:
    """Write the scales of a record to a room, as above; for the blocks of a tile from `block` on.

    They lie `MicroKernel.unpacked_scales` bytes apart.
    """
    micro: MicroKernel = kind.value

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, parameters, first, room = arguments
        ask_for_scales(b, micro, parameters)
        for block in range(micro.blocks):
            bits = RecordBits(b, micro, parameters, b.add(first, v.I64(block)))
            for number, value in enumerate(_scales(b, codes_of(micro), bits)):
                place = micro.unpacked_scales * block + BLOCK_BYTES * number
                v.store(b, value, v.at(b, room, place))
        return context.get_dummy_value()

    return types.void(kind, *[types.int64] * 3), emit


def _scales(b: Builder, codes: Codes, bits: RecordBits) -> Iterator[Value]:
    """Yield what a block's room holds."""
    inner, groups = codes.inner, codes.record_groups
    assert inner is not None
    width, offset = inner.bits, v.constant(v.I32X16, inner.offset)
    for group in range(groups):
        scale = b.sub(bits.field(group * width, width), offset)
        yield _side_by_side(b, scale, scale)
    if codes.shift == "none":
        yield bits.float16(groups * width)
        return
    for group in range(groups, 2 * groups, 2):
        yield _side_by_side(b, *(bits.field((group + i) * width, width) for i in range(2)))
    yield bits.float16(2 * groups * width)
    yield b.fneg(bits.float16(2 * groups * width + OUTER_BITS))  # minimums are subtracted


def _side_by_side(b: Builder, low: Value, high: Value) -> Value:
    """Return lanes of two numbers of 16 bits each."""
    low = b.and_(low, v.constant(v.I32X16, _LOW))
    return b.or_(low, b.shl(high, v.constant(v.I32X16, 16)))


@intrinsic
def zero_dots(_context: Any, kind: Any) -> Any:
    """Return a tile of int32 zeros."""
    tile = tile_of(v.INTS, kind)

    def emit(_context: Any, b: Any, _signature: Any, _arguments: Any) -> Any:
        return packed_tuple(b, [v.constant(v.I32X16, 0)] * tile.count)

    return tile(kind), emit


@intrinsic
def add_whole(
    _context: Any,
    kind: Any,
    part: Any,
    dots: Any,
    _weights: Any,
    _scales: Any,
    rows: Any,
    _at: Any,
    _end: Any,
) -> Any:
    """Return dots + the products of a part of a unit, times its scales.

    At rows + end lies what the end of a row holds of the group, if 16-bit sums begin with that.
    """
    micro: MicroKernel = kind.value
    steps = part.value.steps(codes_of(micro))

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, _, tile, weights, scales_at, addresses, offset, end = arguments
        unit, sums = Unit(b, micro, weights), unpacked_tuple(b, tile)
        starts = _starts(
            b, micro, [b.add(address, end) for address in unpacked_tuple(b, addresses)]
        )
        x = [b.add(address, offset) for address in unpacked_tuple(b, addresses)]
        of_rows = x, starts
        places = (v.at(b, scales_at, micro.unpacked_scales * n) for n in range(micro.blocks))
        scales = [v.load(b, v.I16X32, place) for place in places]
        if not micro.by_blocks:
            return packed_tuple(b, _added(b, unit, sums, of_rows, steps, scales))
        unit.ask(steps)
        each = enumerate(zip(sums, scales, strict=True))
        done = [
            _added(b, unit.block(n), [start], of_rows, steps, [scale]) for n, (start, scale) in each
        ]
        return packed_tuple(b, [value for (value,) in done])

    return dots(kind, part, dots, *[types.int64] * 2, rows, *[types.int64] * 2), emit


def _starts(b: Builder, micro: MicroKernel, ends: Values) -> Values | None:
    """Return what 16-bit sums of rows begin with; None for nothing."""
    if micro.has_minimums:
        return None
    return [b.bitcast(spread(b, end), v.I16X32) for end in ends]


def _added(
    b: Builder, unit: Unit, sums: Values, of_rows: _Rows, steps: range, scales: Values
) -> Values:
    """Return sums + products of some steps of a unit, times the scales of its blocks.

    `of_rows`: where they lie, and what their 16-bit sums begin with.
    """
    x, starts = of_rows
    at_once = codes_of(unit.micro).sums_at_once
    for first in range(0, len(steps), at_once):
        running = [None] * len(sums)
        if starts is not None:
            running = [start for start in starts for _ in scales]
        for step in steps[first : first + at_once]:
            w = unit.numbers(MADD, step)
            bytes_of_rows = [spread(b, v.at(b, address, 4 * step)) for address in x]
            for n, wj, xi in places_of(w, bytes_of_rows):
                running[n] = MADD.add_small(b, running[n], wj, xi)
                if unit.micro.unpacked:
                    running[n] = in_order(b, running[n])
        scaled = [scales[n % len(scales)] for n in range(len(sums))]
        each = zip(sums, running, scaled, strict=True)
        sums = [MADD.end_scaled(b, old, new, scale) for old, new, scale in each]
    return sums


@intrinsic
def add_record(
    _context: Any, kind: Any, sums: Any, dots: Any, _room: Any, rows: Any, _offset: Any
) -> Any:
    """Return sums + what dots of a record stand for; at rows + offset lies the end of a row."""
    micro: MicroKernel = kind.value
    codes = codes_of(micro)

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, ints, room, addresses, offset = arguments
        result, dots = unpacked_tuple(b, tile), unpacked_tuple(b, ints)
        x = [b.add(address, offset) for address in unpacked_tuple(b, addresses)]
        rooms = [v.at(b, room, micro.unpacked_scales * n) for n in range(micro.blocks)]
        blocks = [_times(b, codes, place) for place in rooms]
        for n, (times, minimums), at in places_of(blocks, x):
            value = b.fmul(v.to_float(b, dots[n]), times)
            if minimums is not None:
                value = v.fma(b, _times_sums(b, minimums[0], at), minimums[1], value)
            scale = v.splat(b, v.load(b, v.F32, at))
            result[n] = v.fma(b, value, scale, result[n])
        return packed_tuple(b, result)

    return sums(kind, sums, dots, types.int64, rows, types.int64), emit


def _times(b: Builder, codes: Codes, room: Value) -> tuple[Value, tuple[Values, Value] | None]:
    """Return what scales of a block are times; and minimums, and what they are times."""
    groups = codes.record_groups
    pairs = groups // 2 if codes.shift == "bias" else 0
    behind = v.at(b, room, BLOCK_BYTES * (groups + pairs))
    times = v.load(b, v.F32X16, behind)
    if pairs == 0:
        return times, None
    places = [v.at(b, room, BLOCK_BYTES * (groups + pair)) for pair in range(pairs)]
    minimums = [v.load(b, v.I16X32, place) for place in places]
    return times, (minimums, v.load(b, v.F32X16, v.at(b, behind, BLOCK_BYTES)))


def _times_sums(b: Builder, minimums: Values, end: Value) -> Value:
    """Return minimums times the sums of a row's groups, as float32."""
    total = v.constant(v.I32X16, 0)
    for pair, minimum in enumerate(minimums):
        of_groups = b.bitcast(spread(b, v.at(b, end, 4 + 4 * pair)), v.I16X32)
        total = b.add(total, MADD.pairs(b, minimum, of_groups))
    return v.to_float(b, total)
