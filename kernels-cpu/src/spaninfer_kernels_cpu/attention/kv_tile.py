"""Keys and values of a few tokens as float32, in the order in which products read weights.

Products of queries and keys have tokens for outputs, so keys are transposed: 16 tokens by 32 bytes
of each at a time. Products of weights and values have channels for outputs, as values lie already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba.core import types

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.elements import Element
from spaninfer_kernels_cpu.codegen.vectors import Builder, Value, intrinsic
from spaninfer_kernels_cpu.quantisation.layout import LANES, STEP_BYTES

TOKENS = LANES
PIECE_BYTES = 32

_HALF_PIECE = ir.VectorType(v.I32, 8)
_F16X16 = ir.VectorType(ir.HalfType(), 16)
_I8X16 = ir.VectorType(v.I8, 16)
_I8X8 = ir.VectorType(v.I8, 8)


@intrinsic
def transpose_keys(
    _context: Any, kind: Any, _rows: Any, _offset: Any, _grid: Any, _out: Any
) -> Any:
    """Write 32 bytes of each of 16 keys as float32: a channel is a row of 16 at out + 256 i.

    At `rows` are 16 addresses (int64); `offset` is added to each. At `grid` are 16 zeros and, 256
    bytes further, 16 scales (float32), which only codes have.
    """
    element: Element = kind.value

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, rows, offset, grid, out = arguments
        addresses = [b.add(v.load(b, v.I64, v.at(b, rows, 8 * i)), offset) for i in range(TOKENS)]
        pieces = [v.load(b, _HALF_PIECE, address) for address in addresses]
        units = transposed(
            b, [v.joined(b, *pair) for pair in zip(pieces[:8], pieces[8:], strict=True)]
        )
        numbers = [number for unit in units for number in _numbers_of(b, element, unit)]
        if element.is_quantised:
            zero, scale = (v.load(b, v.F32X16, v.at(b, grid, STEP_BYTES * i)) for i in range(2))
            numbers = [b.fmul(b.fsub(number, zero), scale) for number in numbers]
        for channel, number in enumerate(numbers):
            v.store(b, number, v.at(b, out, STEP_BYTES * channel))
        return context.get_dummy_value()

    return types.void(kind, *[types.int64] * 4), emit


@intrinsic
def widen_values(_context: Any, kind: Any, _address: Any, _grid: Any, _out: Any) -> Any:
    """Write 16 numbers of a value as float32. At `grid` lie zero and scale, if it is quantised."""
    element: Element = kind.value

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, address, grid, out = arguments
        numbers = load_numbers(b, element, address)
        if element.is_quantised:
            zero, scale = (v.splat(b, v.load(b, v.F32, v.at(b, grid, 4 * i))) for i in range(2))
            numbers = b.fmul(b.fsub(numbers, zero), scale)
        v.store(b, numbers, out)
        return context.get_dummy_value()

    return types.void(kind, *[types.int64] * 3), emit


def load_numbers(b: Builder, element: Element, address: Value) -> Value:
    """Return 16 numbers at an address as float32; of quantised values, the codes."""
    if element.name == "float32":
        return v.load(b, v.F32X16, address)
    if element.name == "bfloat16":
        return v.load_bf16(b, address)
    if element.name == "float16":
        return b.fpext(v.load(b, _F16X16, address), v.F32X16)
    if element.name == "int8":
        return v.to_float(b, b.sext(v.load(b, _I8X16, address), v.I32X16))
    packed = v.load(b, _I8X8, address)
    pairs = v.shuffled(b, packed, packed, [lane // 2 for lane in range(LANES)])
    shifts = ir.Constant(v.I32X16, [0, 4] * 8)
    codes = b.lshr(b.zext(pairs, v.I32X16), shifts)
    return v.to_float(b, b.and_(codes, v.constant(v.I32X16, 15)))


def _numbers_of(b: Builder, element: Element, unit: Value) -> Iterator[Value]:
    """Yield the numbers that the 32 bits of each lane hold, as float32, the lowest bits first."""
    if element.name == "float32":
        yield b.bitcast(unit, v.F32X16)
    elif element.name == "bfloat16":
        yield v.even_bf16(b, unit)
        yield v.odd_bf16(b, unit)
    elif element.name == "float16":
        for shift in (0, 16):
            half = b.trunc(b.lshr(unit, v.constant(v.I32X16, shift)), v.I16X16)
            yield b.fpext(b.bitcast(half, _F16X16), v.F32X16)
    elif element.name == "int8":
        for shift in (24, 16, 8, 0):
            first = b.shl(unit, v.constant(v.I32X16, shift))
            yield v.to_float(b, b.ashr(first, v.constant(v.I32X16, 24)))
    else:
        for shift in range(0, 32, 4):
            code = b.lshr(unit, v.constant(v.I32X16, shift))
            yield v.to_float(b, b.and_(code, v.constant(v.I32X16, 15)))


def transposed(b: Builder, rows: list[Value]) -> list[Value]:
    """Return lane i of row j as lane j of row i: of 8 rows, and for both 8 lanes of each apart.

    By single lanes and pairs within fours, then by fours, which is what x86 has instructions for.
    """
    pairs = [
        _mixed(b, rows[i], rows[i + 1], lanes)
        for i in range(0, 8, 2)
        for lanes in ((0, 16, 1, 17), (2, 18, 3, 19))
    ]
    fours = [
        _mixed(b, pairs[i], pairs[i + 2], lanes)
        for i in (0, 1, 4, 5)
        for lanes in ((0, 1, 16, 17), (2, 3, 18, 19))
    ]
    return [
        _mixed(b, fours[i], fours[i + 4], lanes)
        for lanes in ((0, 1, 2, 3, 16, 17, 18, 19), (4, 5, 6, 7, 20, 21, 22, 23))
        for i in range(4)
    ]


def _mixed(b: Builder, low: Value, high: Value, lanes: tuple[int, ...]) -> Value:
    """Return `lanes` of both (those of `high` count from 16), and the same from every few on."""
    starts = range(0, LANES, len(lanes))
    return v.shuffled(b, low, high, [start + lane for start in starts for lane in lanes])
