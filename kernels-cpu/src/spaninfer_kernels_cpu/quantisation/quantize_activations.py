"""Quantised activations: rows of int8 or int16, for other kernels to call.

They are symmetric, with one scale per group of channels: largest size / the largest code, 127 or
up to 32767, or 1 where all are zero. A row holds the quantised values of all groups, each filled up
with zeros, then of every group the scale and the sum of the codes (float32, exact), and
- offset * sum (int32) for weights that are stored unsigned, with an offset: what products want is
read, not computed, once per tile of outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.rounding import ROUNDER, ROUNDER_BITS, rounded
from spaninfer_kernels_cpu.codegen.vectors import intrinsic
from spaninfer_kernels_cpu.quantisation.layout import LANES, ROW_PARAMETER_BYTES

_SIZE = 0x7FFFFFFF  # all bits of a float32 but its sign
_TINY = np.float32(2.0**-64)


@dataclass(frozen=True, slots=True)
class Half(Constant):
    """The first (0) or the last (1) two of four channels."""

    number: int


FIRST_TWO, LAST_TWO = Half(0), Half(1)


class RowSizes(NamedTuple):
    """Channels of a row, of a group and of one that is filled up, bytes of a channel, what is added
    to the weights that it meets so that they are unsigned, and groups, perhaps more than channels
    are for: all their codes are zero; and the largest code. Parts of a group whose codes are summed
    apart (`quantize_row_in_parts`).
    """

    channels: int
    group: int
    padded: int
    channel_bytes: int
    unsigned_offset: int
    groups: int
    most: int
    parts: int


@device_function
def quantize_row_in_parts(source: int, sizes: RowSizes, target: int) -> None:
    """Write float32 channels quantised to int8, then of each group the scale and its parts' sums.

    A scale is float32, a sum of codes int16. With an offset they are two sums of a part, times
    - offset: of the first two of every four channels, and of the others. Parts are of whole LANES.
    """
    channels, padded, parts = sizes.channels, sizes.padded, sizes.parts
    offset = sizes.unsigned_offset
    ends, each = target + sizes.groups * padded, padded // parts
    for number in range(sizes.groups):
        start = min(channels, number * sizes.group)
        count = min(sizes.group, channels - start)
        scale = _scale(source + 4 * start, count, sizes.most)
        if count < padded:
            numbers_at(target, padded, np.uint8)[count // 4 * 4 :] = 0
        _write_narrow(source + 4 * start, count, scale, target)
        floats_at(ends, 1)[0] = scale
        sums = numbers_at(ends + 4, 2 * parts, np.int16)
        for part in range(parts):
            first, second = np.int32(0), np.int32(0)
            for place in range(0, each, LANES):
                first += _sum_of_codes(FIRST_TWO, target + part * each + place)
                second += _sum_of_codes(LAST_TWO, target + part * each + place)
            if offset == 0:
                sums[part] = np.int16(first + second)
            else:
                sums[2 * part] = np.int16(-offset * first)
                sums[2 * part + 1] = np.int16(-offset * second)
        ends += 4 + 2 * parts * (1 if offset == 0 else 2)
        target += padded


@device_function
def quantize_row(source: int, sizes: RowSizes, target: int) -> None:
    """Write float32 channels quantised, their groups filled up to `padded` channels.

    With two bytes per channel they are int16 in the order 0 2 1 3.
    """
    channels, group, padded = sizes.channels, sizes.group, sizes.padded
    channel_bytes, unsigned_offset = sizes.channel_bytes, sizes.unsigned_offset
    parameters = target + sizes.groups * padded * channel_bytes
    for number in range(sizes.groups):
        start = min(channels, number * group)
        count = min(group, channels - start)
        scale = _scale(source + 4 * start, count, sizes.most)
        floats_at(parameters + number * ROW_PARAMETER_BYTES, 1)[0] = scale
    for number in range(sizes.groups):
        start = min(channels, number * group)
        count = min(group, channels - start)
        scale = floats_at(parameters, 1)[0]
        if count < padded:
            codes = numbers_at(target, padded * channel_bytes, np.uint8)
            codes[count // 4 * 4 * channel_bytes :] = 0
        if channel_bytes == 2:
            total = _write_wide(source + 4 * start, count, scale, target)
        else:
            total = _write_narrow(source + 4 * start, count, scale, target)
        floats_at(parameters, 2)[1] = np.float32(total)
        numbers_at(parameters + 8, 1, np.int32)[0] = np.int32(-unsigned_offset * total)
        target += padded * channel_bytes
        parameters += ROW_PARAMETER_BYTES


@device_function
def _scale(source: int, count: int, most: int) -> np.float32:
    """Return the scale of a group.

    Sizes are compared as integers: NaN is the largest of all, and so becomes the scale.
    """
    sizes = _no_sizes()
    for start in range(0, count - LANES + 1, LANES):
        sizes = _larger(sizes, source + 4 * start)
    largest = _largest(sizes)
    for i in range(count // LANES * LANES, count):
        size = np.uint32(numbers_at(source, count, np.uint32)[i] & np.uint32(_SIZE))
        largest = max(largest, size)
    scale = np.uint32(largest).view(np.float32) / np.float32(most)
    return np.float32(1) if scale == 0 else np.float32(scale)


@device_function
def _count_in_lanes(count: int, scale: np.float32) -> int:
    """Return how many channels of a group are divided sixteen at a time (`_writer`): none by a
    scale whose inverse, or what is left of a division, would leave what is exact.
    """
    return 0 if scale < _TINY else count // LANES * LANES


@device_function
def _write_narrow(source: int, count: int, scale: np.float32, target: int) -> np.int32:
    """Write a group's codes as int8, in order; return their sum."""
    inverse, whole = np.float32(1) / scale, _count_in_lanes(count, scale)
    totals = _no_sizes()
    for start in range(0, whole, LANES):
        totals = _write_lanes(totals, source + 4 * start, scale, inverse, target + start)
    total: np.int32 = np.int32(_sum(totals) - whole * ROUNDER_BITS)
    numbers, codes = floats_at(source, count), numbers_at(target, count, np.int8)
    for i in range(whole, count):
        code = rounded(numbers[i] / scale)
        codes[i] = np.int8(code)
        total = np.int32(total + code)
    return total


@device_function
def _write_wide(source: int, count: int, scale: np.float32, target: int) -> np.int32:
    """Write a group's codes as int16, every four in the order 0 2 1 3; return their sum."""
    inverse, whole = np.float32(1) / scale, _count_in_lanes(count, scale)
    totals = _no_sizes()
    for start in range(0, whole, LANES):
        totals = _write_wide_lanes(totals, source + 4 * start, scale, inverse, target + 2 * start)
    total: np.int32 = np.int32(_sum(totals) - whole * ROUNDER_BITS)
    numbers, codes = floats_at(source, count), numbers_at(target, count + 3, np.int16)
    for i in range(whole, count):
        code = rounded(numbers[i] / scale)
        swapped = i + (i & 1) - (i >> 1 & 1)
        codes[swapped] = np.int16(code)
        total = np.int32(total + code)
    return total


# ---- sixteen channels ----------------------------------------------------------------------------


@intrinsic
def _no_sizes(_context: Any) -> Any:
    """Return sixteen zeros."""

    def emit(_context: Any, _b: Any, _signature: Any, _arguments: Any) -> Any:
        return v.constant(v.I32X16, 0)

    return v.INTS(), emit


@intrinsic
def _larger(_context: Any, sizes: Any, _address: Any) -> Any:
    """Return, lane by lane, the larger of sizes and those of the float32 at an address, as bits."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        before, address = arguments
        bits = b.and_(v.load(b, v.I32X16, address), v.constant(v.I32X16, _SIZE))
        return b.select(b.icmp_unsigned(">", bits, before), bits, before)

    return sizes(sizes, types.int64), emit


@intrinsic
def _largest(_context: Any, sizes: Any) -> Any:
    """Return the largest lane."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        return v.call(b, "llvm.vector.reduce.umax.v16i32", *arguments)

    return types.uint32(sizes), emit


@intrinsic
def _sum(_context: Any, totals: Any) -> Any:
    """Return the sum of all lanes."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        return v.call(b, "llvm.vector.reduce.add.v16i32", *arguments)

    return types.int32(totals), emit


@intrinsic
def _sum_of_codes(_context: Any, half: Any, _address: Any) -> Any:
    """Return the sum of two of every four of sixteen int8 at an address."""
    mask = [0, 0, 0, 0]
    mask[2 * half.value.number : 2 * half.value.number + 2] = [-1, -1]

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        codes = b.sext(v.load(b, v.lanes_of(v.I8), arguments[1]), v.I32X16)
        some = b.and_(codes, ir.Constant(v.I32X16, mask * (LANES // 4)))
        return v.call(b, "llvm.vector.reduce.add.v16i32", some)

    return types.int32(half, types.int64), emit


@intrinsic
def _write_lanes(
    _context: Any, _totals: Any, _source: Any, _scale: Any, _inverse: Any, _out: Any
) -> Any:
    """Write sixteen channels quantised to int8; return `totals` plus them and ROUNDER_BITS."""
    return _writer(v.I8, range(LANES))


@intrinsic
def _write_wide_lanes(
    _context: Any, _totals: Any, _source: Any, _scale: Any, _inverse: Any, _out: Any
) -> Any:
    """Write sixteen channels quantised, as int16, every four in the order 0 2 1 3."""
    return _writer(v.I16, [4 * four + place for four in range(4) for place in (0, 2, 1, 3)])


def _writer(kind: Any, order: Any) -> Any:
    """Return signature and code of what writes sixteen codes as a kind of integer.

    A quotient is that of a division, to the bit, in three operations of a cycle or less instead of
    one of sixteen: nearly right by the rounded inverse, then corrected by what is left over, which
    a fused multiplication leaves exact (Markstein, 1990); `_count_in_lanes` keeps it from
    denormals. What it is rounded by stays in the upper bits, which stores leave out and sums take
    off at once.
    """

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        totals, source, *factors, target = arguments
        divisor, inverse = (v.splat(b, factor) for factor in factors)
        numbers = v.load(b, v.F32X16, source)
        near = b.fmul(numbers, inverse)
        left = v.fma(b, b.fneg(near), divisor, numbers)
        shifted = b.fadd(v.fma(b, left, inverse, near), v.constant(v.F32X16, float(ROUNDER)))
        codes = b.bitcast(shifted, v.I32X16)
        ordered = v.shuffled(b, codes, codes, order)
        v.store(b, b.trunc(ordered, v.lanes_of(kind)), target)
        return b.add(totals, codes)

    return v.INTS(v.INTS, types.int64, types.float32, types.float32, types.int64), emit
