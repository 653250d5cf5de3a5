"""The inner steps of GEMM: a tile of sums in registers, rows by blocks of 16 outputs.

A tile is a tuple of vectors, row after row. Every intrinsic takes a MicroKernel, which says how
large the tile is, and emits one straight line of code for all of it; the loops around them are
ordinary Numba code. `weights` is the address of a step of a panel (see `layout`), `rows` the
addresses of the activations of the tile's rows, and `offset` what is added to each of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.constants import ConstantType
from spaninfer_kernels_cpu.codegen.vectors import Builder, Value, intrinsic
from spaninfer_kernels_cpu.gemm.dot_product import BF16_DOTS, spread
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, PANEL

Values = list[Value]


@intrinsic
def row_addresses(_context: Any, kind: Any, _first: Any, _stride: Any, _last: Any) -> Any:
    """Return where rows lie, `stride` bytes apart; those after `last` are the last again."""
    count = kind.value.rows

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, first, stride, last = arguments
        numbers = [v.I64(row) for row in range(count)]
        known = [b.select(b.icmp_signed("<", number, last), number, last) for number in numbers]
        return packed_tuple(b, [b.add(first, b.mul(number, stride)) for number in known])

    return tuple_of(types.int64, count)(kind, *[types.int64] * 3), emit


# ---- sums of float32 ---------------------------------------------------------------------------


@intrinsic
def zero_tile(_context: Any, kind: Any) -> Any:
    """Return a tile of float32 zeros."""
    tile = tile_of(v.FLOATS, kind)

    def emit(_context: Any, b: Any, _signature: Any, _arguments: Any) -> Any:
        return packed_tuple(b, [v.constant(v.F32X16, 0.0)] * tile.count)

    return tile(kind), emit


@intrinsic
def add_products(
    _context: Any, kind: Any, sums: Any, _weights: Any, rows: Any, _offset: Any
) -> Any:
    """Return sums + the products of one step of weights that are numbers, not codes."""
    add = _PRODUCTS[kind.value.kind, kind.value.isa_path]

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, weights, addresses, offset = arguments
        w = load_blocks(b, kind.value, weights)
        x = [b.add(address, offset) for address in unpacked_tuple(b, addresses)]
        return packed_tuple(b, add(b, kind.value, unpacked_tuple(b, tile), w, x))

    return sums(kind, sums, types.int64, rows, types.int64), emit


def _add_float32(b: Builder, _recipe: MicroKernel, sums: Values, w: Values, x: Values) -> Values:
    """One channel."""
    w = [b.bitcast(block, v.F32X16) for block in w]
    x = [v.splat(b, v.load(b, v.F32, address)) for address in x]
    return [v.fma(b, wj, xi, sums[n]) for n, wj, xi in places_of(w, x)]


def _add_bfloat16(b: Builder, _recipe: MicroKernel, sums: Values, w: Values, x: Values) -> Values:
    """Two channels, widened."""
    pairs = [b.bitcast(block, v.I32X16) for block in w]
    for widened, offset in ((v.even_bf16, 0), (v.odd_bf16, 4)):
        numbers = [v.splat(b, v.load(b, v.F32, v.at(b, address, offset))) for address in x]
        halves = [widened(b, pair) for pair in pairs]
        sums = [v.fma(b, wj, xi, sums[n]) for n, wj, xi in places_of(halves, numbers)]
    return sums


def _add_bfloat16_dots(
    b: Builder, micro: MicroKernel, sums: Values, w: Values, x: Values
) -> Values:
    """Two channels, activations in bfloat16 too, in one instruction."""
    w = [b.bitcast(block, v.BF16X32) for block in w]
    x = [b.bitcast(spread(b, address), v.BF16X32) for address in x]
    dot = BF16_DOTS[micro.isa_path]
    return [dot(b, sums[n], wj, xi) for n, wj, xi in places_of(w, x)]


_PRODUCTS: dict[
    tuple[str, str], Callable[[Builder, MicroKernel, Values, Values, Values], Values]
] = {
    ("float32", "fma"): _add_float32,
    ("bfloat16", "fma"): _add_bfloat16,
    **{("bfloat16", isa_path): _add_bfloat16_dots for isa_path in BF16_DOTS},
}


@intrinsic
def store_tile(_context: Any, kind: Any, sums: Any, _address: Any) -> Any:
    """Write float32 sums; rows are PANEL numbers apart."""

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, address = arguments
        for number, value in enumerate(unpacked_tuple(b, tile)):
            row, block = divmod(number, kind.value.blocks)
            v.store(b, value, v.at(b, address, 4 * PANEL * row + BLOCK_BYTES * block))
        return context.get_dummy_value()

    return types.void(kind, sums, types.int64), emit


@intrinsic
def load_tile(_context: Any, kind: Any, _address: Any) -> Any:
    """Return a tile of the float32 that `store_tile` wrote."""
    tile = tile_of(v.FLOATS, kind)

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, address = arguments
        places = (divmod(number, kind.value.blocks) for number in range(tile.count))
        offsets = [4 * PANEL * row + BLOCK_BYTES * block for row, block in places]
        return packed_tuple(b, [v.load(b, v.F32X16, v.at(b, address, n)) for n in offsets])

    return tile(kind, types.int64), emit


@intrinsic
def add_bias(_context: Any, kind: Any, sums: Any, _bias: Any) -> Any:
    """Return the sums of every row plus the float32 of a bias."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, bias = arguments
        blocks = [v.load(b, v.F32X16, v.at(b, bias, BLOCK_BYTES * j)) for j in _blocks(kind)]
        values = unpacked_tuple(b, tile)
        return packed_tuple(b, [b.fadd(n, blocks[i % len(blocks)]) for i, n in enumerate(values)])

    return sums(kind, sums, types.int64), emit


@intrinsic
def add_rows(_context: Any, kind: Any, sums: Any, rows: Any, _scale: Any) -> Any:
    """Return the float32 at the rows' addresses plus sums times a scale, each rounded: numbers that
    are added one by one get the same bits.
    """

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, addresses, scale = arguments
        factor, places = v.splat(b, scale), _places(b, kind, addresses)
        values = zip(unpacked_tuple(b, tile), places, strict=True)
        added = [
            b.fadd(v.load(b, v.F32X16, place), b.fmul(value, factor)) for value, place in values
        ]
        return packed_tuple(b, added)

    return sums(kind, sums, rows, types.float32), emit


@intrinsic
def store_rows(_context: Any, kind: Any, sums: Any, rows: Any) -> Any:
    """Write sums to the rows' addresses."""

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, addresses = arguments
        for value, place in zip(unpacked_tuple(b, tile), _places(b, kind, addresses), strict=True):
            v.store(b, value, place)
        return context.get_dummy_value()

    return types.void(kind, sums, rows), emit


@intrinsic
def ask_rows(_context: Any, kind: Any, rows: Any) -> Any:
    """Prefetch the lines that `store_rows` writes.

    A store to a line that is not in a cache waits for it, and few can wait at a time.
    """

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        for place in _places(b, kind, arguments[1]):
            v.prefetch(b, place, for_writing=True)
        return context.get_dummy_value()

    return types.void(kind, rows), emit


def _blocks(kind: Any) -> range:
    return range(kind.value.blocks)


def _places(b: Builder, kind: Any, addresses: Value) -> Values:
    """Return the addresses of a tile's vectors, row after row."""
    rows = unpacked_tuple(b, addresses)
    return [v.at(b, row, BLOCK_BYTES * block) for row in rows for block in _blocks(kind)]


@intrinsic
def add_tile(
    _context: Any, kind: Any, sums: Any, _address: Any, _stride: Any, _factors: Any
) -> Any:
    """Write the float32 numbers at an address times their row's factor, plus the sums.

    Rows are `stride` bytes apart; factors (float32) lie side by side.
    """

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, address, stride, factors = arguments
        for number, value in enumerate(unpacked_tuple(b, tile)):
            row, block = divmod(number, kind.value.blocks)
            place = v.at(b, b.add(address, b.mul(stride, v.I64(row))), BLOCK_BYTES * block)
            factor = v.splat(b, v.load(b, v.F32, v.at(b, factors, 4 * row)))
            v.store(b, v.fma(b, v.load(b, v.F32X16, place), factor, value), place)
        return context.get_dummy_value()

    return types.void(kind, sums, *[types.int64] * 3), emit


# ---- tuples ------------------------------------------------------------------------------------


def tile_of(lanes: v.Vector, kind: ConstantType) -> Any:
    """Return the type of a tile of vectors."""
    return tuple_of(lanes, kind.value.rows * kind.value.blocks)


def tuple_of(kind: types.Type, count: int) -> Any:
    """Return the type of a tuple of one type."""
    return types.UniTuple(kind, count)  # type: ignore[no-untyped-call]


def load_blocks(b: Builder, micro: MicroKernel, weights: Value) -> Values:
    """Return the bytes of a step of all blocks of the tile; ask for those that come later, but
    where whole units are asked for (`code_unit`).
    """
    if micro.ahead and not micro.by_blocks:
        for block in range(micro.blocks):
            place = v.at(b, weights, BLOCK_BYTES * block + micro.ahead)
            v.prefetch(b, place, nearness=micro.nearness)
    return [v.load(b, v.I8X64, v.at(b, weights, BLOCK_BYTES * j)) for j in range(micro.blocks)]


def places_of(w: list[Any], x: list[Any]) -> list[tuple[int, Any, Any]]:
    """Return number, weights and activations of every vector of a tile."""
    return [(i * len(w) + j, wj, xi) for i, xi in enumerate(x) for j, wj in enumerate(w)]


def packed_tuple(b: Builder, values: Values) -> Value:
    """Return IR values as a Numba tuple of one type."""
    packed = ir.Constant(ir.ArrayType(values[0].type, len(values)), ir.Undefined)
    for number, value in enumerate(values):
        packed = b.insert_value(packed, value, number)
    return packed


def unpacked_tuple(b: Builder, packed: Value) -> Values:
    """Return the IR values of a Numba tuple of one type."""
    return [b.extract_value(packed, number) for number in range(packed.type.count)]
