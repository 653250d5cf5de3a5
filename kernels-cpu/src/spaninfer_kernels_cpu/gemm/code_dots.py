"""The inner steps of GEMM with weights that are codes, and what their groups' scales make of them.

Intrinsics for `tile_gemm`, as in `register_tile`: each emits one straight line of code for a whole
tile. Codes come apart in registers (`codes`), a unit or half of one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from llvmlite import ir
from numba.core import types

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.vectors import Builder, Value, intrinsic
from spaninfer_kernels_cpu.gemm.dot_product import DOTS, Dots, spread
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.gemm.register_tile import (
    Values,
    load_blocks,
    packed_tuple,
    places_of,
    tile_of,
    tuple_of,
    unpacked_tuple,
)
from spaninfer_kernels_cpu.quantisation.codes import (
    LEVELS,
    NUMBER_BITS,
    OUTER_BITS,
    UNIT,
    Codes,
    InnerScales,
)
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, LANES, PANEL, STEP_BYTES

_WORD_BITS = 32
_HALF_WORDS = ir.VectorType(v.I16, LANES)
_INVERSE = -(-(1 << 16) // LEVELS)  # times this by 2^16: exact for numbers of a pair, and a byte


@dataclass(frozen=True, slots=True)
class Part(Constant):
    """A part of a unit: from eighth `first` to the one before `stop`."""

    first: int
    stop: int

    def steps(self, codes: Codes) -> range:
        """Return the fours of channels in it."""
        each = codes.unit // UNIT
        return range(self.first * each, self.stop * each)


WHOLE, LOWER, UPPER = Part(0, 8), Part(0, 4), Part(4, 8)


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
    steps = part.value.steps(_codes(micro))

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, _, tile, weights, addresses, offset = arguments
        x = [b.add(address, offset) for address in unpacked_tuple(b, addresses)]
        return _added(b, _Unit(b, micro, weights), tile, x, steps)

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
        return _added(b, _Unit(b, micro, weights, half), tile, x, range(8))

    return dots(kind, dots, types.int64, types.int64, rows, types.int64), emit


def _added(b: Builder, unit: _Unit, tile: Value, x: Values, steps: range) -> Value:
    """Return a tile of sums + products of some steps of a unit."""
    add = _add_wide if _codes(unit.micro).pairs_at_once == 0 else _add_small
    sums = unpacked_tuple(b, tile)
    if not _by_blocks(unit.micro):
        return packed_tuple(b, add(b, unit, sums, x, steps))
    each = [add(b, unit.block(n), [start], x, steps) for n, start in enumerate(sums)]
    return packed_tuple(b, [done for (done,) in each])


def _by_blocks(micro: MicroKernel) -> bool:
    """Return True if a row is multiplied block after block, each over all steps of a unit.

    Sums of a panel's four blocks take half of sixteen registers, so codes that come apart would
    spill.
    """
    return micro.rows == 1 and micro.isa_path != "vnni512"


def _add_wide(b: Builder, unit: _Unit, sums: Values, x: Values, steps: range) -> Values:
    """Products with numbers of 8 bits."""
    path = DOTS[unit.micro.isa_path]
    for step in steps:
        w = unit.factors(path, step)
        offset = 4 * unit.micro.channel_bytes * step
        codes = [path.activations(b, v.at(b, address, offset)) for address in x]
        sums = [path.add(b, sums[n], wj, xi) for n, wj, xi in places_of(w, codes)]
    return sums


def _add_small(b: Builder, unit: _Unit, sums: Values, x: Values, steps: range) -> Values:
    """Products with numbers of which 16 bits hold two at least."""
    path = DOTS[unit.micro.isa_path]
    at_once = _codes(unit.micro).pairs_at_once
    if at_once == 1:
        return _add_ones(b, unit, sums, x, steps)
    for first in range(0, len(steps), at_once):
        running = [path.start_small(start) for start in sums]
        for step in steps[first : first + at_once]:
            w = unit.numbers(path, step)
            codes = [spread(b, v.at(b, address, 4 * step)) for address in x]
            running = [path.add_small(b, running[n], wj, xi) for n, wj, xi in places_of(w, codes)]
        sums = [path.end_small(b, old, new) for old, new in zip(sums, running, strict=True)]
    return sums


def _add_ones(b: Builder, unit: _Unit, sums: Values, x: Values, steps: range) -> Values:
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


def _codes(micro: MicroKernel) -> Codes:
    assert micro.codes is not None
    return micro.codes


class _Unit:
    """The codes of a unit, all blocks of a tile, as they come out of memory and apart.

    With `half`, its steps are those of the first or the second half, known when the code runs.
    """

    def __init__(
        self, b: Builder, micro: MicroKernel, address: Value, half: Value | None = None
    ) -> None:
        self.micro, self._b, self._address, self._half = micro, b, address, half
        self._words: dict[int, Values] = {}
        self._pairs: dict[int, list[tuple[Value, Value]]] = {}

    def factors(self, path: Dots, step: int) -> list[tuple[Value, ...]]:
        """Return four channels of every output in the form that wide products take."""
        if not self.micro.unpacked:
            return [path.weights(self._b, block) for block in self.numbers(path, step)]
        places = (v.at(self._b, self._address, BLOCK_BYTES * (2 * step + i)) for i in range(2))
        return [tuple(v.load(self._b, v.I16X32, place) for place in places)]

    def block(self, number: int) -> _Unit:
        """Return the codes of one of the blocks."""
        address = v.at(self._b, self._address, BLOCK_BYTES * number)
        return _Unit(self._b, replace(self.micro, blocks=1), address, self._half)

    def numbers(self, path: Dots, step: int) -> Values:
        """Return the unsigned numbers of four channels of every output, as bytes."""
        if self.micro.unpacked:
            return [v.load(self._b, v.I8X64, v.at(self._b, self._address, BLOCK_BYTES * step))]
        codes = _codes(self.micro)
        if not codes.is_paired:
            return self._whole(path, codes, step)
        fours, which = divmod(step, 2)
        if fours not in self._pairs:
            self._pairs[fours] = [_apart(self._b, block) for block in self._seven_bits(fours)]
        return [pair[which] for pair in self._pairs[fours]]

    def _seven_bits(self, fours: int) -> Values:
        """Return four codes of pairs of every output, as bytes."""
        half, place = divmod(fours, 4)
        if place < 3:
            return [self._part(each, 7, 0, 0) for each in self._load(4 * half + place)]
        lower = [self._part(self._shifted(each), 4, 4 * half, 0) for each in self._load(3)]
        above = [
            [self._part(each, 1, 7, 4 + bit) for each in self._load(4 * half + bit)]
            for bit in range(3)
        ]
        return [self._joined(block) for block in zip(lower, *above, strict=True)]

    def _whole(self, path: Dots, codes: Codes, step: int) -> Values:
        """Return the numbers of codes that stand for one."""
        word = place = 0
        parts: list[Values] = []
        for width in codes.planes:
            number, within = divmod(step * width, 8)
            words = self._load(word + number)
            parts.append([self._part(each, width, within, place) for each in words])
            word, place = word + width, place + width
        blocks = [self._joined(block) for block in zip(*parts, strict=True)]
        if codes.table is None:
            return blocks
        return [path.looked_up(self._b, codes.table, block) for block in blocks]

    def _load(self, word: int) -> Values:
        if word not in self._words:
            at = v.at(self._b, self._address, STEP_BYTES * word)
            if self._half is not None and word != 3:
                at = self._b.add(at, self._b.mul(self._half, v.I64(4 * STEP_BYTES)))
            self._words[word] = load_blocks(self._b, self.micro, at)
        return self._words[word]

    def _shifted(self, word: Value) -> Value:
        """Return the word that both halves have a part of, this half's in the lower bits."""
        if self._half is None:
            return word
        b = self._b
        by = v.splat(b, b.mul(b.trunc(self._half, v.I16), v.I16(4)), v.I16X32.count)
        return b.bitcast(b.lshr(b.bitcast(word, v.I16X32), by), v.I8X64)

    def _part(self, word: Value, width: int, shift: int, place: int) -> Value:
        """Return `width` bits of every byte, from bit `shift` on, at bit `place`."""
        b = self._b
        if width == 8:
            return word
        pairs = b.bitcast(word, v.I16X32)
        if shift > place:
            pairs = b.lshr(pairs, v.constant(v.I16X32, shift - place))
        elif shift < place:
            pairs = b.shl(pairs, v.constant(v.I16X32, place - shift))
        mask = (1 << width) - 1 << place
        return b.and_(b.bitcast(pairs, v.I8X64), v.constant(v.I8X64, mask))

    def _joined(self, parts: tuple[Value, ...]) -> Value:
        first, *rest = parts
        for part in rest:
            first = self._b.or_(first, part)
        return first


@intrinsic
def unpack_unit(_context: Any, kind: Any, _weights: Any, _out: Any) -> Any:
    """Write a block's codes of a unit as products take them (`MicroKernel.unpacked`)."""
    micro: MicroKernel = kind.value
    codes, path = _codes(micro), DOTS[micro.isa_path]

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, weights, out = arguments
        unit = _Unit(b, micro, weights)
        for step in WHOLE.steps(codes):
            vectors: Any = unit.numbers(path, step)
            if codes.pairs_at_once == 0:
                vectors = path.weights(b, *vectors)
            for number, vector in enumerate(vectors):
                v.store(b, vector, v.at(b, out, BLOCK_BYTES * (len(vectors) * step + number)))
        return context.get_dummy_value()

    return types.void(kind, types.int64, types.int64), emit


def _apart(b: Builder, codes: Value) -> tuple[Value, Value]:
    """Return both numbers of pairs, as bytes.

    A quotient by LEVELS is the upper half of a product of 16 bits, which holds two bytes: the byte
    below the upper one is a fraction of its number, and changes no quotient.
    """
    words = b.bitcast(codes, v.I16X32)
    lower = _upper_product(b, b.and_(words, v.constant(v.I16X32, 255)))
    upper = b.and_(_upper_product(b, words), v.constant(v.I16X32, 0xFF00))
    second = b.or_(lower, upper)
    first = b.sub(words, b.mul(second, v.constant(v.I16X32, LEVELS)))
    return b.bitcast(first, v.I8X64), b.bitcast(second, v.I8X64)


def _upper_product(b: Builder, words: Value) -> Value:
    """Return the upper halves of the products of 16 bits with _INVERSE."""
    wide = ir.VectorType(v.I32, words.type.count)
    product = b.mul(b.zext(words, wide), v.constant(wide, _INVERSE))
    return b.trunc(b.lshr(product, v.constant(wide, 16)), words.type)


# ---- scales --------------------------------------------------------------------------------------


@intrinsic
def expand_scales(_context: Any, kind: Any, _parameters: Any, _block: Any, _room: Any) -> Any:
    """Write what a record's inner scales and minimums stand for to a room: float32, by group.

    For the blocks of a tile from `block` on. Flat scales are left where they are, but for unpacked
    weights, which have theirs and what is beside them in the room too.
    """
    micro: MicroKernel = kind.value
    codes = _codes(micro)

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, parameters, first, room = arguments
        if codes.inner is not None:
            for block in range(micro.blocks):
                bits = _Bits(b, codes, parameters, b.add(first, v.I64(block)))
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


def _outer_times_inner(
    b: Builder, bits: _Bits, codes: Codes, inner: InnerScales
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


class _Bits:
    """The string of bits behind a record, of the outputs of a block."""

    def __init__(self, b: Builder, codes: Codes, parameters: Value, block: Value) -> None:
        self._b = b
        whole, rest = divmod(codes.parameter_bits, _WORD_BITS)
        at = b.add(parameters, b.mul(block, v.I64(BLOCK_BYTES)))
        self._words = [v.load(b, v.I32X16, v.at(b, at, STEP_BYTES * word)) for word in range(whole)]
        if rest:
            at = b.add(parameters, b.mul(block, v.I64(BLOCK_BYTES // 2)))
            half = v.load(b, _HALF_WORDS, v.at(b, at, STEP_BYTES * whole))
            self._words.append(b.zext(half, v.I32X16))

    def field(self, place: int, width: int) -> Value:
        """Return so many bits from a place on, as int32."""
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
    codes = _codes(micro)

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, tile, ints, found, addresses, offset = arguments
        flat, room, first, group = unpacked_tuple(b, found)
        w = []
        for block in range(micro.blocks):
            if codes.inner is None and not micro.unpacked:
                w.append(_flat(b, codes, flat, b.add(first, v.I64(block)), group))
            else:
                w.append(_expanded(b, micro, room, block, group))
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
    if _codes(micro).shift == "none":
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
