"""Sums over groups of codes, scaled: with biases, zero points or inner scales.

Intrinsics for `tile_gemm`, and for `amx_tile`, whose sums are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba.core import types

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.memory import CACHE_LINE
from spaninfer_kernels_cpu.codegen.vectors import Builder, Value, intrinsic
from spaninfer_kernels_cpu.gemm.code_unit import codes_of
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.gemm.register_tile import (
    packed_tuple,
    places_of,
    tuple_of,
    unpacked_tuple,
)
from spaninfer_kernels_cpu.quantisation.codes import NUMBER_BITS, OUTER_BITS, Codes, InnerScales
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, LANES, PANEL, STEP_BYTES

_OF_ROW = (v.F32, v.F32, v.I32)  # a group's scale, its codes' sum, and what integer sums leave out
_WORD_BITS = 32
_HALF_WORDS = ir.VectorType(v.I16, LANES)


@intrinsic
def expand_scales(_context: Any, kind: Any, _parameters: Any, _block: Any, _room: Any) -> Any:
    """Write what a record's inner scales and minimums stand for to a room: float32, by group.

    For the blocks of a tile from `block` on. Flat scales are left where they are, but for unpacked
    weights, which have theirs and what is beside them in the room too.
    """
    micro: MicroKernel = kind.value
    codes = codes_of(micro)

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, parameters, first, room = arguments
        ask_for_scales(b, micro, parameters)
        if codes.inner is not None:
            for block in range(micro.blocks):
                bits = RecordBits(b, micro, parameters, b.add(first, v.I64(block)))
                to = v.at(b, room, BLOCK_BYTES * block)
                for number, value in enumerate(_outer_times_inner(b, bits, codes, codes.inner)):
                    v.store(b, value, v.at(b, to, BLOCK_BYTES * micro.blocks * number))
        elif micro.unpacked:
            groups = range(codes.record_groups)
            found = [_flat(b, codes, parameters, first, v.I64(group)) for group in groups]
            for number, value in enumerate(
                each for pair in zip(*found, strict=True) for each in pair
            ):
                if value is not None:
                    v.store(b, value, v.at(b, room, BLOCK_BYTES * number))
        return context.get_dummy_value()

    return types.void(kind, *[types.int64] * 3), emit


def ask_for_scales(b: Builder, micro: MicroKernel, parameters: Value) -> None:
    """Prefetch what comes `ahead` of a record's scales, where blocks are multiplied one by one."""
    if micro.by_blocks and micro.ahead:
        for line in range(micro.parameter_bytes // CACHE_LINE):
            place = v.at(b, parameters, CACHE_LINE * line + micro.ahead)
            v.prefetch(b, place, nearness=micro.nearness)


def _outer_times_inner(
    b: Builder, bits: RecordBits, codes: Codes, inner: InnerScales
) -> Iterator[Value]:
    """Yield scales of all groups, then biases if there are any; one at a time is in registers."""
    groups, width = codes.record_groups, inner.bits
    kinds = 2 if codes.shift == "bias" else 1
    for kind in range(kinds):
        outer = bits.float16(kinds * groups * width + OUTER_BITS * kind)
        if kind == 1:  # minimums are subtracted
            outer = b.fneg(outer)
        for group in range(groups):
            number = bits.field((kind * groups + group) * width, width)
            if kind == 0 and inner.offset:
                number = b.sub(number, v.constant(v.I32X16, inner.offset))
            yield b.fmul(v.to_float(b, number), outer)


class RecordBits:
    """The string of bits behind a record, of the outputs of a block."""

    def __init__(self, b: Builder, micro: MicroKernel, parameters: Value, block: Value) -> None:
        self._b = b
        whole, rest = divmod(codes_of(micro).parameter_bits, _WORD_BITS)
        at = b.add(parameters, b.mul(block, v.I64(BLOCK_BYTES)))
        self._words = [v.load(b, v.I32X16, v.at(b, at, STEP_BYTES * word)) for word in range(whole)]
        if micro.ahead and not micro.by_blocks:
            for word in range(whole):
                place = v.at(b, at, STEP_BYTES * word + micro.ahead)
                v.prefetch(b, place, nearness=micro.nearness)
        if rest:
            at = b.add(parameters, b.mul(block, v.I64(BLOCK_BYTES // 2)))
            half = v.load(b, _HALF_WORDS, v.at(b, at, STEP_BYTES * whole))
            self._words.append(b.zext(half, v.I32X16))

    def field(self, place: int, width: int) -> Value:
        """Return that many bits from a place on, as int32."""
        b = self._b
        word, shift = divmod(place, _WORD_BITS)
        bits = self._words[word]
        if shift:
            bits = b.lshr(bits, v.constant(v.I32X16, shift))
        if shift + width > _WORD_BITS:
            rest = v.constant(v.I32X16, _WORD_BITS - shift)
            bits = b.or_(bits, b.shl(self._words[word + 1], rest))
        return b.and_(bits, v.constant(v.I32X16, (1 << width) - 1))

    def float16(self, place: int) -> Value:
        """Return the float16 at a place as float32."""
        return v.float16_lanes(self._b, self._b.trunc(self.field(place, OUTER_BITS), _HALF_WORDS))


@intrinsic
def add_scaled(
    _context: Any, kind: Any, sums: Any, dots: Any, scales: Any, rows: Any, _offset: Any
) -> Any:
    """Return sums + x scale * what dots of a group stand for.

    `scales`: the address of flat scales, the room of inner ones (`expand_scales`), the tile's first
    block and the group's number in its record. At rows + offset lie the row's parameters
    (`quantize_activations`).
    """
    micro: MicroKernel = kind.value
    codes = codes_of(micro)

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, ints, found, addresses, offset = arguments
        w = group_scales(b, micro, found)
        x = []
        for row in unpacked_tuple(b, addresses):
            at = b.add(row, offset)
            x.append(tuple(v.splat(b, v.load(b, v.F32, v.at(b, at, 4 * i))) for i in range(2)))
        result, ints = unpacked_tuple(b, tile), unpacked_tuple(b, ints)
        for n, (scale, shift), (x_scale, total) in places_of(w, x):
            value = _meant(b, codes, v.to_float(b, ints[n]), scale, shift, total)
            result[n] = v.fma(b, value, x_scale, result[n])
        return packed_tuple(b, result)

    return sums(kind, sums, dots, scales, rows, types.int64), emit


def group_scales(
    b: Builder, micro: MicroKernel, found: Value, further: int = 0
) -> list[tuple[Value, Value | None]]:
    """Return a group's scales of each of the tile's blocks, and biases or zero points.

    `found` is what `add_scaled` takes; `further` groups behind that one.
    """
    codes = codes_of(micro)
    flat, room, first, group = unpacked_tuple(b, found)
    group = b.add(group, v.I64(further))
    if codes.inner is None and not micro.unpacked:
        blocks = [b.add(first, v.I64(block)) for block in range(micro.blocks)]
        return [_flat(b, codes, flat, block, group) for block in blocks]
    return [_expanded(b, micro, room, block, group) for block in range(micro.blocks)]


def _meant(
    b: Builder, codes: Codes, dots: Value, scale: Value, shift: Value | None, total: Value
) -> Value:
    """Return what sums of products stand for, but for the activations' scale."""
    if shift is None:
        return b.fmul(dots, scale)
    if codes.shift == "zero":  # exact: both are whole numbers below 2^24
        return b.fmul(b.fsub(dots, b.fmul(shift, total)), scale)
    return v.fma(b, dots, scale, b.fmul(shift, total))


def _flat(
    b: Builder, codes: Codes, parameters: Value, block: Value, group: Value
) -> tuple[Value, Value | None]:
    """Return scales of a block, and biases or zero points."""
    bits = NUMBER_BITS[codes.scale]
    each = (bits + codes.shift_bits) // 8 * PANEL
    at = b.add(parameters, b.mul(group, v.I64(each)))
    scale = _NUMBERS[codes.scale](b, b.add(at, b.mul(block, v.I64(LANES * bits // 8))))
    if codes.shift == "none":
        return scale, None
    at = b.add(
        at, b.add(v.I64(PANEL * bits // 8), b.mul(block, v.I64(LANES * codes.shift_bits // 8)))
    )
    if codes.shift == "zero":
        zeros = v.load(b, v.lanes_of(v.I8), at)
        return scale, v.to_float(b, b.zext(zeros, v.I32X16))
    return scale, _NUMBERS[codes.scale](b, at)


def _expanded(
    b: Builder, micro: MicroKernel, room: Value, block: int, group: Value
) -> tuple[Value, Value | None]:
    each = BLOCK_BYTES * micro.blocks
    at = v.at(b, b.add(room, b.mul(group, v.I64(each))), BLOCK_BYTES * block)
    scale = v.load(b, v.F32X16, at)
    if codes_of(micro).shift == "none":
        return scale, None
    return scale, v.load(b, v.F32X16, v.at(b, at, each * micro.record_groups))


def _load_float32(b: Builder, address: Value) -> Value:
    return v.load(b, v.F32X16, address)


def _load_float16(b: Builder, address: Value) -> Value:
    return v.float16_lanes(b, v.load(b, _HALF_WORDS, address))


def _load_e8m0(b: Builder, address: Value) -> Value:
    """Powers of two: the exponent of a float32; 2^-127, which has none, as 2^-126 halved."""
    exponents = b.zext(v.load(b, v.lanes_of(v.I8), address), v.I32X16)
    normal = b.shl(exponents, v.constant(v.I32X16, 23))
    is_least = b.icmp_unsigned("==", exponents, v.constant(v.I32X16, 0))
    return b.bitcast(b.select(is_least, v.constant(v.I32X16, 1 << 22), normal), v.F32X16)


_NUMBERS = {
    "bfloat16": v.load_bf16,
    "float16": _load_float16,
    "float32": _load_float32,
    "e8m0": _load_e8m0,
}


@intrinsic
def load_parameters(_context: Any, _address: Any) -> Any:
    """Return the scales of two blocks of outputs, then their middles, from a group's parameters."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        (address,) = arguments
        places = (0, BLOCK_BYTES // 2, 2 * PANEL, 2 * PANEL + BLOCK_BYTES // 2)
        return packed_tuple(b, [v.load_bf16(b, v.at(b, address, place)) for place in places])

    return tuple_of(v.FLOATS, 4)(types.int64), emit


@intrinsic
def add_scaled_row(_context: Any, w: Any, _dots: Any, _row: Any, _sums: Any) -> Any:
    """Add to float32 sums what int32 ones mean, of two blocks of a row; all are in memory.

    w is what `load_parameters` returned; at `row` are the parameters of the row's group
    (`quantize_activations`). The int32 sums began at zero.
    """

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        parameters, dots, row, sums = arguments
        *scales, first, second = unpacked_tuple(b, parameters)
        x_scale, total = (v.splat(b, v.load(b, v.F32, v.at(b, row, offset))) for offset in (0, 4))
        start = v.splat(b, v.load(b, v.I32, v.at(b, row, 8)))
        for block, group_bias in enumerate((first, second)):
            place = v.at(b, sums, BLOCK_BYTES * block)
            ints = v.load(b, v.I32X16, v.at(b, dots, BLOCK_BYTES * block))
            number = v.to_float(b, b.add(ints, start))
            value = v.fma(b, number, scales[block], b.fmul(group_bias, total))
            v.store(b, v.fma(b, value, x_scale, v.load(b, v.F32X16, place)), place)
        return context.get_dummy_value()

    return types.void(w, *[types.int64] * 3), emit


@intrinsic
def add_scaled_tile(
    _context: Any, kind: Any, sums: Any, _parameters: Any, _dots: Any, rows: Any
) -> Any:
    """Return sums + what int32 ones in memory mean, of a panel's outputs, as `add_scaled_row` adds.

    `parameters`: address of those of the group; `rows`: addresses of each row's.
    """
    micro: MicroKernel = kind.value
    blocks = range(micro.blocks)

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, parameters, dots, addresses = arguments
        w = [
            tuple(
                v.load_bf16(b, v.at(b, parameters, 2 * PANEL * part + BLOCK_BYTES // 2 * block))
                for part in range(2)
            )
            for block in blocks
        ]
        x = [
            tuple(
                v.splat(b, v.load(b, each, v.at(b, row, 4 * i))) for i, each in enumerate(_OF_ROW)
            )
            for row in unpacked_tuple(b, addresses)
        ]
        result = unpacked_tuple(b, tile)
        for n, (scale, group_bias), (x_scale, total, start) in places_of(w, x):
            row, block = divmod(n, micro.blocks)
            ints = v.load(b, v.I32X16, v.at(b, dots, STEP_BYTES * row + BLOCK_BYTES * block))
            number = v.to_float(b, b.add(ints, start))
            value = v.fma(b, number, scale, b.fmul(group_bias, total))
            result[n] = v.fma(b, value, x_scale, result[n])
        return packed_tuple(b, result)

    return sums(kind, sums, types.int64, types.int64, rows), emit
