"""A unit of codes as it comes out of memory, and apart into numbers (`quantisation.codes`).

What the instructions that multiply bytes take: `code_dots` asks for a few channels at a time;
`unpack_unit` writes all of them, for rows that share them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from llvmlite import ir
from numba.core import types

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.memory import CACHE_LINE
from spaninfer_kernels_cpu.codegen.vectors import Builder, Value, intrinsic
from spaninfer_kernels_cpu.gemm.dot_product import DOTS, Dots
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.gemm.register_tile import Values, load_blocks
from spaninfer_kernels_cpu.quantisation.codes import LEVELS, UNIT, Codes
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, STEP_BYTES

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


def codes_of(micro: MicroKernel) -> Codes:
    """Return the codes of a micro-kernel that multiplies by such."""
    assert micro.codes is not None
    return micro.codes


class Unit:
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

    def words(self, number: int) -> Values:
        """Return a word of every output, of two codes of 16 bits."""
        if self.micro.unpacked:
            place = v.at(self._b, self._address, BLOCK_BYTES * number)
            return [v.load(self._b, v.I16X32, place)]
        return [self._b.bitcast(block, v.I16X32) for block in self._load(number)]

    def ask(self, steps: range) -> None:
        """Prefetch as much of what comes `ahead` as these steps are of a unit, front to back.

        Codes that are read block after block, or plane beside plane, seem to jump to what reads
        ahead by itself.
        """
        lines = self.micro.weight_bytes // CACHE_LINE
        every = WHOLE.steps(codes_of(self.micro)).stop
        if self.micro.ahead:
            for line in range(lines * steps.start // every, lines * steps.stop // every):
                place = v.at(self._b, self._address, CACHE_LINE * line + self.micro.ahead)
                v.prefetch(self._b, place, nearness=self.micro.nearness)

    def block(self, number: int) -> Unit:
        """Return the codes of one of the blocks."""
        address = v.at(self._b, self._address, BLOCK_BYTES * number)
        return Unit(self._b, replace(self.micro, blocks=1), address, self._half)

    def numbers(self, path: Dots, step: int) -> Values:
        """Return the unsigned numbers of four channels of every output, as bytes."""
        if self.micro.unpacked:
            return [v.load(self._b, v.I8X64, v.at(self._b, self._address, BLOCK_BYTES * step))]
        codes = codes_of(self.micro)
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
    codes, path = codes_of(micro), DOTS[micro.isa_path]

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, weights, out = arguments
        unit = Unit(b, micro, weights)
        for step in WHOLE.steps(codes):
            if codes.is_wide:
                vectors: Any = [*unit.words(2 * step), *unit.words(2 * step + 1)]
            elif codes.pairs_at_once == 0:
                vectors = path.weights(b, *unit.numbers(path, step))
            else:
                vectors = unit.numbers(path, step)
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
