"""Scores and sums of a few queries by keys and values where they lie, in the spans.

A decode has as many queries as query heads share a key head. To copy 64 keys to where products of
many queries read them, transposed, then takes longer than the products: 6.7 µs of a key head's 64
tokens of 128 channels with two queries (Zen 4). Here a vector holds channels of one key: each is
multiplied into a sum of its own, eight keys by two queries at a time, and what the lanes of eight
sums hold is added up in one go.
"""

from __future__ import annotations

from typing import Any

from numba.core import types

from spaninfer_kernels_cpu.attention.attend_block import Extent, Scratch
from spaninfer_kernels_cpu.attention.attention_kernels import (
    BLOCKS,
    KEYS,
    AttentionKernels,
    QueryTile,
)
from spaninfer_kernels_cpu.attention.kv_tile import load_numbers
from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.device_function import device_function, host_device_function
from spaninfer_kernels_cpu.codegen.elements import Element, read_int64
from spaninfer_kernels_cpu.codegen.vectors import Builder, Value, intrinsic
from spaninfer_kernels_cpu.gemm.register_tile import (
    add_tile,
    packed_tuple,
    tile_of,
    tuple_of,
    unpacked_tuple,
    zero_tile,
)
from spaninfer_kernels_cpu.quantisation.layout import LANES, PANEL, STEP_BYTES

MOST_QUERIES = 8  # of a task that reads keys and values in place


@host_device_function
def reads_in_place(num_queries: int, key_size: int, value_size: int) -> bool:
    """Return True if so few queries read keys and values where they lie, unless these are codes."""
    return num_queries <= MOST_QUERIES and key_size % LANES == 0 and value_size % PANEL == 0


@device_function
def score_in_place(kernels: AttentionKernels, extent: Extent, scratch: Scratch) -> None:
    """Write scores[N 64] of a few queries and a block's keys; `size` is a multiple of 16."""
    for key in range(0, extent.num_keys, KEYS):
        for first in range(0, extent.num_queries - 1, 2):
            _score(kernels.key_pair, first, key, extent.size, scratch)
        if extent.num_queries % 2 == 1:
            _score(kernels.key_single, extent.num_queries - 1, key, extent.size, scratch)


@device_function
def _score(tile: QueryTile, first: int, key: int, size: int, scratch: Scratch) -> None:
    rows: Any = _read_addresses(tile, scratch.rows + 8 * key)
    queries, stride = scratch.queries + first * size * 4, size * 4
    sums: Any = zero_tile(tile)
    for channel in range(0, size, LANES):
        sums = _add_keys(tile, sums, rows, channel, queries + 4 * channel, stride)
    _store_totals(tile, sums, scratch.scores + first * STEP_BYTES + 4 * key)


@device_function
def add_values_in_place(kernels: AttentionKernels, extent: Extent, scratch: Scratch) -> None:
    """Multiply the sums by `kept` and add the products of weights[N count] and values[count E];
    `size` is a multiple of 64.
    """
    for channel in range(0, extent.size, PANEL):
        for first in range(0, extent.num_queries - 1, 2):
            _add_values(kernels.value_pair, first, channel, extent, scratch)
        if extent.num_queries % 2 == 1:
            _add_values(kernels.value_single, extent.num_queries - 1, channel, extent, scratch)


@device_function
def _add_values(
    tile: QueryTile, first: int, channel: int, extent: Extent, scratch: Scratch
) -> None:
    sums: Any = zero_tile(tile)
    weights = scratch.scores + first * STEP_BYTES
    for token in range(extent.num_keys):
        row = read_int64(scratch.rows, PANEL + token)
        sums = _add_value(tile, sums, row, channel, weights + 4 * token)
    into = scratch.sums + 4 * (first * extent.size + channel)
    add_tile(tile, sums, into, 4 * extent.size, scratch.kept + 4 * first)


# ---- intrinsics ----------------------------------------------------------------------------------


@intrinsic
def _read_addresses(_context: Any, tile: Any, _address: Any) -> Any:
    """Return the addresses (int64) of a tile's keys."""
    count = tile.value.blocks

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        address = arguments[1]
        return packed_tuple(b, [v.load(b, v.I64, v.at(b, address, 8 * i)) for i in range(count)])

    return tuple_of(types.int64, count)(tile, types.int64), emit


@intrinsic
def _add_keys(
    _context: Any, tile: Any, sums: Any, rows: Any, _channel: Any, _queries: Any, _stride: Any
) -> Any:
    """Return sums + 16 channels of every key, from `channel` on, times those of every query."""
    shape: QueryTile = tile.value

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, values, addresses, channel, queries, stride = arguments
        offset = _bytes_of(b, shape.kind, channel)
        keys = [
            load_numbers(b, shape.kind, b.add(address, offset))
            for address in unpacked_tuple(b, addresses)
        ]
        added = unpacked_tuple(b, values)
        for row in range(shape.rows):
            query = v.load(b, v.F32X16, b.add(queries, b.mul(stride, v.I64(row))))
            for number, key in enumerate(keys, row * shape.blocks):
                added[number] = v.fma(b, key, query, added[number])
        return packed_tuple(b, added)

    return tile_of(v.FLOATS, tile)(tile, sums, rows, *[types.int64] * 3), emit


@intrinsic
def _store_totals(_context: Any, tile: Any, sums: Any, _address: Any) -> Any:
    """Write the sum of the lanes of every sum; rows are 64 numbers apart."""
    shape: QueryTile = tile.value

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, values, address = arguments
        every = unpacked_tuple(b, values)
        for row in range(shape.rows):
            some = every[row * shape.blocks : (row + 1) * shape.blocks]
            v.store(b, _totals(b, some), v.at(b, address, STEP_BYTES * row))
        return context.get_dummy_value()

    return types.void(tile, sums, types.int64), emit


@intrinsic
def _add_value(_context: Any, tile: Any, sums: Any, _row: Any, _channel: Any, _weights: Any) -> Any:
    """Return sums + 64 channels of a value, from `channel` on, times its weight by every query."""
    shape: QueryTile = tile.value

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, values, row, channel, weights = arguments
        first = b.add(row, _bytes_of(b, shape.kind, channel))
        each = LANES * shape.kind.bits // 8
        blocks = [load_numbers(b, shape.kind, v.at(b, first, each * i)) for i in range(BLOCKS)]
        added = unpacked_tuple(b, values)
        for query in range(shape.rows):
            weight = v.splat(b, v.load(b, v.F32, v.at(b, weights, STEP_BYTES * query)))
            for number, block in enumerate(blocks, query * BLOCKS):
                added[number] = v.fma(b, block, weight, added[number])
        return packed_tuple(b, added)

    return tile_of(v.FLOATS, tile)(tile, sums, *[types.int64] * 3), emit


def _bytes_of(b: Builder, kind: Element, channel: Value) -> Value:
    return b.mul(channel, v.I64(kind.bits // 8))


def _totals(b: Builder, sums: list[Value]) -> Value:
    """Return the sums of the lanes of eight vectors: halves of two at a time, then of four, ..."""
    width = LANES // 2
    while len(sums) > 1:
        sums = [_halved(b, sums[i], sums[i + 1], width) for i in range(0, len(sums), 2)]
        width //= 2
    (whole,) = sums
    even, odd = ([2 * lane + i for lane in range(KEYS)] for i in range(2))
    return b.fadd(v.shuffled(b, whole, whole, even), v.shuffled(b, whole, whole, odd))


def _halved(b: Builder, low: Value, high: Value, width: int) -> Value:
    """Return the sums of neighbouring `width` lanes, of one vector and then of the other."""
    starts = range(0, 2 * LANES, 2 * width)
    first, second = (
        [start + i * width + lane for start in starts for lane in range(width)] for i in range(2)
    )
    return b.fadd(v.shuffled(b, low, high, first), v.shuffled(b, low, high, second))
