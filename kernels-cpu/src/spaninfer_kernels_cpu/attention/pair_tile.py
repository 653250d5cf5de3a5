"""Queries, keys, values and weights as pairs of bfloat16, as products by pairs read them.

An instruction multiplies two bfloat16 of each of 16 outputs and adds both to a float32: half as
many as of float32. A pair is two channels of a key, or one channel of two values; two neighbouring
weights are one as they lie.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from spaninfer_kernels_cpu.attention.attend_block import Scratch
from spaninfer_kernels_cpu.attention.kv_tile import TOKENS, transposed
from spaninfer_kernels_cpu.attention.spans import CacheArrays
from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import Element, read_int64, smaller
from spaninfer_kernels_cpu.codegen.vectors import Builder, Value, intrinsic
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, LANES, PANEL, STEP_BYTES

PIECE = 32  # channels that are transposed at a time

_HALF_PIECE = ir.VectorType(v.I32, 8)


@device_function
def load_key_pairs(kind: Element, spans: CacheArrays, count: int, rows: int, keys: int) -> None:
    """Write keys[D / 2, 64] of `count` tokens, of float32 or bfloat16, which lie where `rows` say
    (`attend_block.Scratch`); D is a multiple of PIECE.
    """
    for token in range(0, count, TOKENS):
        for channel in range(0, spans.key_size, PIECE):
            offset = channel * kind.bits // 8
            into = keys + token * 4 + channel // 2 * STEP_BYTES
            _transpose_pairs(kind, rows + token * 8, offset, into)


@device_function
def load_value_pairs(kind: Element, spans: CacheArrays, count: int, rows: int, values: int) -> None:
    """Write values[ceil(E / 64) 64 64] of the same tokens, two a row, an odd one beside zeros; E is
    a multiple of 16.
    """
    for token in range(0, count, 2):
        row = read_int64(rows, PANEL + token)
        other = read_int64(rows, PANEL + smaller(token + 1, count - 1))
        into = values + token // 2 * STEP_BYTES
        for block in range(spans.value_size // LANES):
            panel, place = block // (PANEL // LANES), block % (PANEL // LANES)
            out = into + panel * PANEL * STEP_BYTES + place * BLOCK_BYTES
            offset = block * LANES * kind.bits // 8
            _write_pairs(kind, row + offset, other + offset, token + 1 < count, out)


@device_function
def narrow_weights(num_queries: int, scratch: Scratch) -> None:
    """Write weights[N 64] over what they were as float32; rows stay where they begin.

    Behind the last key they are any finite numbers: values have zeros there.
    """
    for n in range(num_queries):
        _narrow_row(scratch.scores + n * STEP_BYTES)


@intrinsic
def narrow_piece(_context: Any, _source: Any, _scale: Any, _out: Any) -> Any:
    """Write PIECE float32, scaled, as bfloat16."""

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        source, scale, out = arguments
        for block in range(PIECE // LANES):
            numbers = v.load(b, v.F32X16, v.at(b, source, BLOCK_BYTES * block))
            scaled = v.to_bf16(b, b.fmul(numbers, v.splat(b, scale)))
            v.store(b, scaled, v.at(b, out, BLOCK_BYTES // 2 * block))
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64), emit


@intrinsic
def _transpose_pairs(_context: Any, kind: Any, _rows: Any, _offset: Any, _out: Any) -> Any:
    """Write PIECE channels of 16 keys: a pair of channels is a row of 16 at out + 256 i.

    At `rows` are 16 addresses (int64); `offset` is added to each.
    """
    element: Element = kind.value

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, rows, offset, out = arguments
        keys = [b.add(v.load(b, v.I64, v.at(b, rows, 8 * i)), offset) for i in range(TOKENS)]
        for half in range(2):
            place = LANES * element.bits // 8 * half
            pieces = [_pairs_at(b, element, v.at(b, key, place)) for key in keys]
            joined = [v.joined(b, *pair) for pair in zip(pieces[:8], pieces[8:], strict=True)]
            for number, unit in enumerate(transposed(b, joined), 8 * half):
                v.store(b, unit, v.at(b, out, STEP_BYTES * number))
        return context.get_dummy_value()

    return types.void(kind, *[types.int64] * 3), emit


@intrinsic
def _write_pairs(_context: Any, kind: Any, _one: Any, _other: Any, _both: Any, _out: Any) -> Any:
    """Write 16 channels of two values as pairs; without `both`, of one and of zeros."""
    element: Element = kind.value

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, one, other, both, out = arguments
        low, high = _narrow_at(b, element, one), _narrow_at(b, element, other)
        high = b.select(both, high, v.constant(v.I16X16, 0))
        lanes = [lane + LANES * place for lane in range(LANES) for place in range(2)]
        pairs = v.shuffled(b, low, high, lanes)
        v.store(b, pairs, out)
        return context.get_dummy_value()

    return types.void(kind, types.int64, types.int64, types.boolean, types.int64), emit


@intrinsic
def _narrow_row(_context: Any, _row: Any) -> Any:
    """Write 64 float32 at an address as bfloat16 from there on."""

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        (row,) = arguments
        places = [v.at(b, row, BLOCK_BYTES * block) for block in range(PANEL // LANES)]
        narrowed = [v.to_bf16(b, v.load(b, v.F32X16, place)) for place in places]
        for number in range(0, len(narrowed), 2):
            place = v.at(b, row, BLOCK_BYTES // 2 * number)
            v.store(b, v.joined(b, *narrowed[number : number + 2]), place)
        return context.get_dummy_value()

    return types.void(types.int64), emit


def _pairs_at(b: Builder, element: Element, address: Value) -> Value:
    """Return 16 numbers at an address as eight pairs of bfloat16."""
    return b.bitcast(_narrow_at(b, element, address), _HALF_PIECE)


def _narrow_at(b: Builder, element: Element, address: Value) -> Value:
    """Return 16 numbers at an address, float32 or bfloat16, as the bits of bfloat16."""
    if element.name == "bfloat16":
        return v.load(b, v.I16X16, address)
    return b.bitcast(v.to_bf16(b, v.load(b, v.F32X16, address)), v.I16X16)
