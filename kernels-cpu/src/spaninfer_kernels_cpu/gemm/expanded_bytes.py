"""Codes expanded to bytes, 128 channels of an output to a scale, for products of many rows.

Sums of a group's products are scaled by vector instructions that take the place of products: after
32 channels, with a minimum, 3 for every 8 of these. A byte of 128 channels stands for a 127th of
the largest number that their codes could be, so many times; activations are quantised in the same
groups.

A byte is the upper part of a sum of 16 bits: a code times a factor, plus a term.
"""

from __future__ import annotations

from math import floor, log2
from typing import Any

from llvmlite import ir
from numba.core import types

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import smaller
from spaninfer_kernels_cpu.codegen.memory import stack
from spaninfer_kernels_cpu.codegen.vectors import Builder, Value, intrinsic
from spaninfer_kernels_cpu.gemm.code_scales import expand_scales, group_scales
from spaninfer_kernels_cpu.gemm.code_unit import LOWER, UPPER, WHOLE, Unit, codes_of
from spaninfer_kernels_cpu.gemm.dot_product import DOTS
from spaninfer_kernels_cpu.gemm.micro_kernel import EXPANDED, EXPANDED_GROUP, MicroKernel
from spaninfer_kernels_cpu.gemm.panel_records import record_parts
from spaninfer_kernels_cpu.gemm.panel_rows import PanelRows
from spaninfer_kernels_cpu.gemm.register_tile import packed_tuple, tuple_of, unpacked_tuple
from spaninfer_kernels_cpu.quantisation.codes import Codes
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, PANEL, STEP_BYTES

_CODE_BYTES = EXPANDED_GROUP * PANEL
_GROUP_BYTES = _CODE_BYTES + EXPANDED.parameter_bits // 8 * PANEL

_MOST, _MIDDLE = 127, 128  # of a byte: its largest distance from the one that stands for 0
_SIZE = 0x7FFFFFFF  # all bits of a float32 but its sign
_I32X32 = ir.VectorType(v.I32, 32)


@device_function
def expand_codes(micro: MicroKernel, job: PanelRows, first: int, stop: int, out: int) -> int:
    """Write units of a panel as groups of bytes, each with its scales; return how many groups."""
    _, record_bytes, row_record = job.sizes
    of_record = row_record // micro.row_bytes
    room = stack(micro.scales_room)
    groups = 0
    for begin in range(first, stop, EXPANDED_GROUP // micro.unit_channels):
        end = smaller(stop, begin + EXPANDED_GROUP // micro.unit_channels)
        largest: Any = no_sizes(micro)
        for unit in range(begin, end):
            codes, scales = record_parts(
                micro, job.panel + unit // of_record * record_bytes, record_bytes
            )
            if unit == begin:
                expand_scales(micro, scales, 0, room)
            group = unit % of_record * micro.record_groups // of_record
            largest = larger_sizes(micro, largest, (scales, room, 0, group))
        inverses: Any = store_scales(micro, largest, out + _CODE_BYTES)
        for unit in range(begin, end):
            codes, scales = record_parts(
                micro, job.panel + unit // of_record * record_bytes, record_bytes
            )
            group = unit % of_record * micro.record_groups // of_record
            at = codes + unit % of_record * micro.weight_bytes
            to = out + (unit - begin) * micro.unit_channels * PANEL
            expand_unit(micro, at, (scales, room, 0, group), inverses, to)
        out += _GROUP_BYTES
        groups += 1
    return groups


@intrinsic
def no_sizes(_context: Any, kind: Any) -> Any:
    """Return zeros for the outputs of a tile's blocks."""
    count = kind.value.blocks

    def emit(_context: Any, b: Any, _signature: Any, _arguments: Any) -> Any:
        return packed_tuple(b, [v.constant(v.I32X16, 0)] * count)

    return tuple_of(v.INTS, count)(kind), emit


@intrinsic
def larger_sizes(_context: Any, kind: Any, sizes: Any, found: Any) -> Any:
    """Return the larger of sizes and those that codes of a unit could have, as bits of float32.

    `found` is as in `code_scales.add_scaled`.
    """
    micro: MicroKernel = kind.value
    codes = codes_of(micro)

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, scales = arguments
        largest = unpacked_tuple(b, tile)
        for half, _ in enumerate(_parts(codes)):
            for block, each in enumerate(group_scales(b, micro, scales, half)):
                for value in _ends(b, codes, *each):
                    bits = b.and_(b.bitcast(value, v.I32X16), v.constant(v.I32X16, _SIZE))
                    is_larger = b.icmp_unsigned(">", bits, largest[block])
                    largest[block] = b.select(is_larger, bits, largest[block])
        return packed_tuple(b, largest)

    return sizes(kind, sizes, found), emit


@intrinsic
def store_scales(_context: Any, kind: Any, sizes: Any, _out: Any) -> Any:
    """Write what a byte stands for where the largest have these sizes; return the inverses."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, out = arguments
        inverses = []
        for block, bits in enumerate(unpacked_tuple(b, tile)):
            is_zero = b.icmp_unsigned("==", bits, v.constant(v.I32X16, 0))
            size = b.select(is_zero, v.constant(v.F32X16, 1.0), b.bitcast(bits, v.F32X16))
            scale = b.fmul(size, v.constant(v.F32X16, 1 / _MOST))
            v.store(b, scale, v.at(b, out, BLOCK_BYTES * block))
            inverses.append(b.fdiv(v.constant(v.F32X16, float(_MOST)), size))
        return packed_tuple(b, inverses)

    return tuple_of(v.FLOATS, kind.value.blocks)(kind, sizes, types.int64), emit


@intrinsic
def expand_unit(
    _context: Any, kind: Any, _weights: Any, found: Any, inverses: Any, _out: Any
) -> Any:
    """Write a unit of all blocks as bytes, `inverses` of which are 1."""
    micro: MicroKernel = kind.value
    codes, path = codes_of(micro), DOTS["vnni512"]

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, weights, scales, inverse, out = arguments
        unit, by = Unit(b, micro, weights), unpacked_tuple(b, inverse)
        for half, part in enumerate(_parts(codes)):
            each = zip(group_scales(b, micro, scales, half), by, strict=True)
            lines = [_line(b, codes, *pair, times) for pair, times in each]
            for step in part.steps(codes):
                for block, numbers in enumerate(unit.numbers(path, step)):
                    expanded = _as_bytes(b, codes, numbers, *lines[block])
                    place = STEP_BYTES * step + BLOCK_BYTES * block
                    v.store(b, expanded, v.at(b, out, place))
        return context.get_dummy_value()

    return types.void(kind, types.int64, found, inverses, types.int64), emit


def _parts(codes: Codes) -> Any:
    """Return the parts of a unit that have scales of their own."""
    return (LOWER, UPPER) if codes.halves else (WHOLE,)


def _ends(b: Builder, codes: Codes, scale: Value, shift: Value | None) -> tuple[Value, Value]:
    """Return what the least and the largest code stand for."""
    term = _term(b, codes, scale, shift)
    return term, v.fma(b, v.constant(v.F32X16, float(codes.most)), scale, term)


def _term(b: Builder, codes: Codes, scale: Value, shift: Value | None) -> Value:
    """Return what the code 0 stands for."""
    if codes.shift == "zero":
        return b.fneg(b.fmul(scale, shift))
    middle = v.constant(v.F32X16, -float(codes.offset))
    return b.fmul(scale, middle) if shift is None else v.fma(b, scale, middle, shift)


def _line(
    b: Builder, codes: Codes, scale: Value, shift: Value | None, inverse: Value
) -> tuple[Value, Value]:
    """Return factors and terms of 16 bits (`_as_bytes`), each twice for an output."""
    factor_bits, fraction = _factor_bits(codes), _fraction_bits(codes)
    factor = b.fmul(scale, inverse)
    term = b.fmul(_term(b, codes, scale, shift), inverse)
    unit = float(1 << fraction)
    # Half a byte more, as sums are cut off, and half a unit: products and terms are cut off, too,
    # but sums that are whole units lose a half less than others would.
    middle = v.constant(v.F32X16, (_MIDDLE + 0.5) * unit + 0.5)
    start = v.fma(b, term, v.constant(v.F32X16, unit), middle)
    factor = b.fmul(factor, v.constant(v.F32X16, float(1 << factor_bits)))
    return _twice(b, factor), _twice(b, start)


def _twice(b: Builder, numbers: Value) -> Value:
    """Return sixteen numbers as whole ones of 16 bits, each twice."""
    words = b.fptosi(numbers, v.I32X16)
    low = b.and_(words, v.constant(v.I32X16, 0xFFFF))
    return b.bitcast(b.or_(low, b.shl(words, v.constant(v.I32X16, 16))), v.I16X32)


def _as_bytes(b: Builder, codes: Codes, numbers: Value, factor: Value, start: Value) -> Value:
    """Return bytes for unsigned numbers: upper halves of products with a factor, plus a term."""
    shift, fraction = _number_shift(codes), _fraction_bits(codes)
    words, upper = b.bitcast(numbers, v.I16X32), v.constant(v.I16X32, 0xFF00)
    even = b.shl(b.and_(words, v.constant(v.I16X32, 0xFF)), v.constant(v.I16X32, shift))
    odd = b.and_(words, upper)
    by = v.constant(v.I16X32, abs(shift - 8))
    odd = b.shl(odd, by) if shift > 8 else b.lshr(odd, by)
    low, high = (b.add(_upper_product(b, each, factor), start) for each in (even, odd))
    low = b.lshr(low, v.constant(v.I16X32, fraction))
    high = b.and_(b.shl(high, v.constant(v.I16X32, 8 - fraction)), upper)
    return b.bitcast(b.or_(low, high), v.I8X64)


def _upper_product(b: Builder, left: Value, right: Value) -> Value:
    """Return the upper halves of signed products of 16 bits."""
    product = b.mul(b.sext(left, _I32X32), b.sext(right, _I32X32))
    return b.trunc(b.lshr(product, v.constant(_I32X32, 16)), v.I16X32)


def _number_shift(codes: Codes) -> int:
    """Return by how many bits numbers are shifted: the largest then has 15."""
    return 15 - codes.most.bit_length()


def _factor_bits(codes: Codes) -> int:
    """Return how many bits of a factor are behind the point.

    Numbers are at most twice _MOST bytes apart, so many for the largest code: 15 bits hold that.
    """
    return floor(log2(0x7FFF * codes.most / (2 * _MOST)))


def _fraction_bits(codes: Codes) -> int:
    """Return how many bits of the upper half of a product are behind the point."""
    return _number_shift(codes) + _factor_bits(codes) - 16
