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
from spaninfer_kernels_cpu.gemm.dot_product import BF16_DOTS, DOTS, spread
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, PANEL, STEP_BYTES, STEPS_AT_ONCE

Values = list[Value]


@intrinsic
def row_addresses(_context: Any, kind: Any, _first: Any, _stride: Any, _last: Any) -> Any:
    """Return where rows lie, `stride` bytes apart; those after `last` are the last again."""
    count = kind.value.rows

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, first, stride, last = arguments
        numbers = [v.I64(row) for row in range(count)]
        known = [b.select(b.icmp_signed("<", number, last), number, last) for number in numbers]
        return _packed(b, [b.add(first, b.mul(number, stride)) for number in known])

    return _tuple_of(types.int64, count)(kind, *[types.int64] * 3), emit


# ---- sums of float32 ---------------------------------------------------------------------------


@intrinsic
def zero_tile(_context: Any, kind: Any) -> Any:
    """Return a tile of float32 zeros."""
    tile = _tile(v.FLOATS, kind)

    def emit(_context: Any, b: Any, _signature: Any, _arguments: Any) -> Any:
        return _packed(b, [v.constant(v.F32X16, 0.0)] * tile.count)

    return tile(kind), emit


@intrinsic
def add_products(
    _context: Any, kind: Any, sums: Any, _weights: Any, rows: Any, _offset: Any
) -> Any:
    """Return sums + the products of one step of weights that are numbers, not codes."""
    add = _PRODUCTS[kind.value.kind, kind.value.isa_path]

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, weights, addresses, offset = arguments
        w = _load_blocks(b, kind.value, weights)
        x = [b.add(address, offset) for address in _unpacked(b, addresses)]
        return _packed(b, add(b, kind.value, _unpacked(b, tile), w, x))

    return sums(kind, sums, types.int64, rows, types.int64), emit


def _add_float32(b: Builder, _recipe: MicroKernel, sums: Values, w: Values, x: Values) -> Values:
    """One channel."""
    w = [b.bitcast(block, v.F32X16) for block in w]
    x = [v.splat(b, v.load(b, v.F32, address)) for address in x]
    return [v.fma(b, wj, xi, sums[n]) for n, wj, xi in _places(w, x)]


def _add_bfloat16(b: Builder, _recipe: MicroKernel, sums: Values, w: Values, x: Values) -> Values:
    """Two channels, widened."""
    pairs = [b.bitcast(block, v.I32X16) for block in w]
    for widened, offset in ((v.even_bf16, 0), (v.odd_bf16, 4)):
        numbers = [v.splat(b, v.load(b, v.F32, v.at(b, address, offset))) for address in x]
        halves = [widened(b, pair) for pair in pairs]
        sums = [v.fma(b, wj, xi, sums[n]) for n, wj, xi in _places(halves, numbers)]
    return sums


def _add_bfloat16_dots(
    b: Builder, micro: MicroKernel, sums: Values, w: Values, x: Values
) -> Values:
    """Two channels, activations in bfloat16 too, in one instruction."""
    w = [b.bitcast(block, v.BF16X32) for block in w]
    x = [b.bitcast(spread(b, address), v.BF16X32) for address in x]
    dot = BF16_DOTS[micro.isa_path]
    return [dot(b, sums[n], wj, xi) for n, wj, xi in _places(w, x)]


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
        for number, value in enumerate(_unpacked(b, tile)):
            row, block = divmod(number, kind.value.blocks)
            v.store(b, value, v.at(b, address, 4 * PANEL * row + BLOCK_BYTES * block))
        return context.get_dummy_value()

    return types.void(kind, sums, types.int64), emit


@intrinsic
def add_tile(
    _context: Any, kind: Any, sums: Any, _address: Any, _stride: Any, _factors: Any
) -> Any:
    """Write the float32 numbers at an address times their row's factor, plus the sums.

    Rows are `stride` bytes apart; factors (float32) lie side by side.
    """

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, address, stride, factors = arguments
        for number, value in enumerate(_unpacked(b, tile)):
            row, block = divmod(number, kind.value.blocks)
            place = v.at(b, b.add(address, b.mul(stride, v.I64(row))), BLOCK_BYTES * block)
            factor = v.splat(b, v.load(b, v.F32, v.at(b, factors, 4 * row)))
            v.store(b, v.fma(b, v.load(b, v.F32X16, place), factor, value), place)
        return context.get_dummy_value()

    return types.void(kind, sums, *[types.int64] * 3), emit


# ---- sums of quantised values --------------------------------------------------------------------


@intrinsic
def start_dots(_context: Any, kind: Any, rows: Any, _offset: Any) -> Any:
    """Return int32 sums that begin at - centre * (sum of the row's codes in the group).

    Weights so count from the middle of their codes. At rows + offset lie the group's parameters
    (`quantize_activations`).
    """
    tile = _tile(v.INTS, kind)

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, addresses, offset = arguments
        starts = []
        for address in _unpacked(b, addresses):
            start = v.load(b, v.I32, v.at(b, b.add(address, offset), 8))
            starts += [v.splat(b, start)] * kind.value.blocks
        return _packed(b, starts)

    return tile(kind, rows, types.int64), emit


@intrinsic
def add_dots(_context: Any, kind: Any, dots: Any, _weights: Any, rows: Any, _offset: Any) -> Any:
    """Return dots + the products of quantised values, of as many steps as STEPS_AT_ONCE says."""
    add = _DOTS[kind.value.kind]

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, weights, addresses, offset = arguments
        x = [b.add(address, offset) for address in _unpacked(b, addresses)]
        return _packed(b, add(b, kind.value, _unpacked(b, tile), weights, x))

    return dots(kind, dots, types.int64, rows, types.int64), emit


def _add_int8(b: Builder, micro: MicroKernel, sums: Values, weights: Value, x: Values) -> Values:
    """Four channels per step."""
    isa_path = DOTS[micro.isa_path]
    for step in range(STEPS_AT_ONCE["int8"]):
        blocks = _load_blocks(b, micro, v.at(b, weights, STEP_BYTES * step))
        w = [isa_path.weights(b, block) for block in blocks]
        offset = 4 * micro.channel_bytes * step
        codes = [isa_path.activations(b, v.at(b, address, offset)) for address in x]
        sums = [isa_path.add(b, sums[n], wj, xi) for n, wj, xi in _places(w, codes)]
    return sums


def _add_int4(b: Builder, micro: MicroKernel, sums: Values, weights: Value, x: Values) -> Values:
    """Eight channels per step."""
    isa_path = DOTS[micro.isa_path]
    running = [isa_path.start_small(start) for start in sums]
    for step in range(STEPS_AT_ONCE["int4"]):
        blocks = _load_blocks(b, micro, v.at(b, weights, STEP_BYTES * step))
        for nibbles, offset in ((v.low_nibbles, 0), (v.high_nibbles, 4)):
            w = [nibbles(b, block) for block in blocks]
            codes = [spread(b, v.at(b, address, 8 * step + offset)) for address in x]
            running = [isa_path.add_small(b, running[n], wj, xi) for n, wj, xi in _places(w, codes)]
    return [isa_path.end_small(b, start, end) for start, end in zip(sums, running, strict=True)]


_DOTS: dict[str, Callable[[Builder, MicroKernel, Values, Value, Values], Values]] = {
    "int8": _add_int8,
    "int4": _add_int4,
}


@intrinsic
def add_scaled(
    _context: Any, kind: Any, sums: Any, dots: Any, _parameters: Any, rows: Any, _offset: Any
) -> Any:
    """Return sums + x scale * (w scale * dots + w bias * x sum), which a group stands for.

    `parameters` is the address of the first block's scales; at rows + offset lie the row's
    (`quantize_activations`).
    """

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, ints, parameters, addresses, offset = arguments
        w, x = [], []
        for block in range(kind.value.blocks):
            scales = v.at(b, parameters, BLOCK_BYTES // 2 * block)
            w.append((v.load_bf16(b, scales), v.load_bf16(b, v.at(b, scales, 2 * PANEL))))
        for row in _unpacked(b, addresses):
            at = b.add(row, offset)
            x.append(tuple(v.splat(b, v.load(b, v.F32, v.at(b, at, 4 * i))) for i in range(2)))
        result, ints = _unpacked(b, tile), _unpacked(b, ints)
        for n, (scale, group_bias), (x_scale, total) in _places(w, x):
            value = v.fma(b, v.to_float(b, ints[n]), scale, b.fmul(group_bias, total))
            result[n] = v.fma(b, value, x_scale, result[n])
        return _packed(b, result)

    return sums(kind, sums, dots, types.int64, rows, types.int64), emit


@intrinsic
def load_parameters(_context: Any, _address: Any) -> Any:
    """Return the scales of two blocks of outputs, then their middles, from a group's parameters."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        (address,) = arguments
        places = (0, BLOCK_BYTES // 2, 2 * PANEL, 2 * PANEL + BLOCK_BYTES // 2)
        return _packed(b, [v.load_bf16(b, v.at(b, address, place)) for place in places])

    return _tuple_of(v.FLOATS, 4)(types.int64), emit


@intrinsic
def add_scaled_row(_context: Any, w: Any, _dots: Any, _row: Any, _sums: Any) -> Any:
    """Add to float32 sums what int32 ones mean, of two blocks of a row; all are in memory.

    w is what `load_parameters` returned; at `row` are the parameters of the row's group
    (`quantize_activations`). The int32 sums began at zero.
    """

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        parameters, dots, row, sums = arguments
        *scales, first, second = _unpacked(b, parameters)
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


# ---- tuples ------------------------------------------------------------------------------------


def _tile(lanes: v.Vector, kind: ConstantType) -> Any:
    return _tuple_of(lanes, kind.value.rows * kind.value.blocks)


def _tuple_of(kind: types.Type, count: int) -> Any:
    return types.UniTuple(kind, count)  # type: ignore[no-untyped-call]


def _load_blocks(b: Builder, micro: MicroKernel, weights: Value) -> Values:
    """Return the bytes of a step of all blocks of the tile; ask for those that come later."""
    if micro.ahead:
        for block in range(micro.blocks):
            v.prefetch(b, v.at(b, weights, BLOCK_BYTES * block + micro.ahead))
    return [v.load(b, v.I8X64, v.at(b, weights, BLOCK_BYTES * j)) for j in range(micro.blocks)]


def _places(w: list[Any], x: list[Any]) -> list[tuple[int, Any, Any]]:
    """Return number, weights and activations of every vector of a tile."""
    return [(i * len(w) + j, wj, xi) for i, xi in enumerate(x) for j, wj in enumerate(w)]


def _packed(b: Builder, values: Values) -> Value:
    """Return IR values as a Numba tuple of one type."""
    packed = ir.Constant(ir.ArrayType(values[0].type, len(values)), ir.Undefined)
    for number, value in enumerate(values):
        packed = b.insert_value(packed, value, number)
    return packed


def _unpacked(b: Builder, packed: Value) -> Values:
    """Return the IR values of a Numba tuple of one type."""
    return [b.extract_value(packed, number) for number in range(packed.type.count)]
