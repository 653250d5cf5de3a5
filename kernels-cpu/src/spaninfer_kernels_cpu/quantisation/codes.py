"""The memory layout of quantised weights of any origin: codes and their scales.

A unit is 32 channels. Its codes are planes of 8, 4, 2 or 1 bits, the wider ones first: 6 bits are a
plane of 4 and one of 2. A plane of n bits takes n words of four bytes from every output; byte i of
its word w holds channel i of the 8 / n fours of channels from 8 / n * w on, the first of them in
its lowest bits.

7 bits are a pair of neighbours, numbers of 11 levels each: 3.5 bits of a weight. Then a unit is 64
channels, its sixteen fours are eight twos of fours, and q + 11 * r stands for channel i of both
fours. Seven words hold the eight: words 0 to 2, and 4 to 6, one each in the lower seven bits of
every byte; the bits above them, from the lowest on, are bits 4 to 6 of the fourth and the eighth,
whose lower four bits are the low and the high half of word 3. Half a unit so needs no more than
four words.

16 bits are whole numbers with a sign; the mean of a group's sizes is WIDE_MEAN at most. Word 2i of
a unit holds channels 4i and 4i + 2, word 2i + 1 channels 4i + 1 and 4i + 3, the first of them in
its lower half: in this order activations of 16 bits lie (`quantize_activations`).

A group has a scale, and perhaps a bias or a zero point, in one of two forms:

    flat      behind the codes of a group 64 scales, then 64 biases or zero points; behind those of
              two groups where they are half a unit each
    inner     in front of the codes of 256 channels a string of bits from every output: its inner
              scales, inner minimums, float16 scale of the scales and, of the minimums. In words of
              32 bits, 64 of them side by side; what is left, 16 bits, in half words. They are read
              before the codes, and so memory is read front to back

A code q stands for (T(q) - offset) * scale + bias, or (T(q) - zero) * scale, or with inner scales
(T(q) - offset) * outer * (inner - inner offset) - outer minimum * inner minimum. T is an entry in a
table of unsigned bytes, or the code itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.errors import FormatError

ScaleNumber = Literal["bfloat16", "float16", "float32", "e8m0"]
Shift = Literal["none", "bias", "zero"]

UNIT = 32  # channels, of codes that stand for one
PLANES = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
PAIR_BITS, LEVELS = 7, 11  # of two numbers that share a code: 121 of 128 pairs
NARROW_LEVELS = 181  # of weights and of activations: 16 bits hold 2 * 180 * 90, and no more levels
WIDE_BITS, WIDE_MEAN = 16, 4095  # so 32 bits hold 128 products with 4,097
NUMBER_BITS: dict[ScaleNumber, int] = {"bfloat16": 16, "float16": 16, "float32": 32, "e8m0": 8}
OUTER_BITS = 16
_BYTE = 255
_INT32, _INT16, _INT8 = 0x7FFFFFFF, 0x7FFF, 127
_NARROW = NARROW_LEVELS // 2


@dataclass(frozen=True, slots=True)
class InnerScales(Constant):
    """Whole numbers under a float16 scale: `bits` of each, the number that stands for 0."""

    bits: int
    offset: int


@dataclass(frozen=True, slots=True)
class Codes(Constant):
    """The memory layout of codes and scales, and their meaning; see above.

    bits    2 to 6, or 8; 7 of two numbers together; 16 with a sign
    offset  what numbers count from; 0 with zero points, and of 16 bits
    scale   the number format of flat scales, and of biases; float16 above inner ones
    shift   what a group has beside a scale; "bias" of inner scales is a minimum, subtracted
    halves  whether groups are half a unit: 16 channels, or 32 of pairs
    table   an unsigned byte for each code
    activation_bits  8; for weights of 8 bits also 16, and for those of 16 only; or 7: then neither
            weights nor activations have more than NARROW_LEVELS. It is what activations are
            quantised to
    """

    bits: int
    offset: int
    scale: ScaleNumber
    shift: Shift
    inner: InnerScales | None = None
    halves: bool = False
    table: tuple[int, ...] | None = None
    activation_bits: int = 8

    def __post_init__(self) -> None:
        """Raise FormatError unless there are such codes."""
        if self.bits not in (*PLANES, PAIR_BITS, WIDE_BITS):
            allowed = ", ".join(map(str, PLANES))
            raise FormatError(
                f"codes have {self.bits} bits; choose one of {allowed}, {PAIR_BITS} of pairs, or "
                f"{WIDE_BITS} with a sign"
            )
        if self.is_paired and (self.table is not None or self.inner is not None):
            raise FormatError("codes of pairs have a table or inner scales; leave both out")
        beside = self.offset, self.shift, self.table, self.inner
        if self.is_wide and beside != (0, "none", None, None):
            raise FormatError("codes of 16 bits have a flat scale alone; leave the rest out")
        if self.table is not None and (
            len(self.table) != 1 << self.bits
            or not 0 <= min(self.table) <= max(self.table) <= _BYTE
        ):
            raise FormatError(
                f"table holds {self.table}; give {1 << self.bits} bytes, one for each code"
            )
        if not self._takes_activations():
            raise FormatError(
                f"activations have {self.activation_bits} bits beside weights of {self.bits}; "
                "choose 8, or 7 or 16 beside weights of 8 bits, or 16 beside those of 16"
            )
        if self.inner is not None and (self.scale != "float16" or self.shift == "zero"):
            raise FormatError(
                f"inner scales lie under {self.scale} with {self.shift!r} beside them; give "
                "float16 and 'none' or 'bias'"
            )

    @property
    def planes(self) -> tuple[int, ...]:
        """Bits of each plane, of codes that stand for one number."""
        return (WIDE_BITS,) if self.is_wide else PLANES[self.bits]

    @property
    def is_paired(self) -> bool:
        """True if a code stands for two numbers."""
        return self.bits == PAIR_BITS

    @property
    def is_wide(self) -> bool:
        """True if codes are whole numbers of 16 bits, with a sign."""
        return self.bits == WIDE_BITS

    @property
    def unit(self) -> int:
        """Channels of a unit, of `bits` words."""
        return 2 * UNIT if self.is_paired else UNIT

    @property
    def levels(self) -> int:
        """The number of numbers that a channel can have, but for a table."""
        if self.is_narrow:
            return NARROW_LEVELS
        return LEVELS if self.is_paired else 1 << self.bits

    @property
    def is_narrow(self) -> bool:
        """True if 16 bits hold the sum of two products, for want of levels on both sides."""
        return self.activation_bits == 7

    @property
    def most(self) -> int:
        """The largest unsigned number of a channel; of 16 bits the largest mean size of a group."""
        if self.is_wide:
            return WIDE_MEAN
        return self.levels - 1 if self.table is None else max(self.table)

    def most_activation(self, channels: int) -> int:
        """Return the largest quantised activation beside groups of that many channels.

        Products of a group with the largest weights are summed in 32 bits.
        """
        if self.activation_bits <= 8:
            return _NARROW if self.is_narrow else _INT8
        return min(_INT16, _INT32 // (self.most * channels))

    @property
    def pairs_at_once(self) -> int:
        """Sums of two products with bytes that 16 bits hold; 0 where not even one fits."""
        return _INT16 // (2 * self.most * (_NARROW if self.is_narrow else _INT8))

    @property
    def has_whole_scales(self) -> bool:
        """True if products are multiplied by whole scales in integers (`gemm.whole_scales`).

        16 bits must hold what they are times: products of numbers that count from 0, and have a
        minimum, or of all of a group that count from an offset.
        """
        if self.inner is None or self.pairs_at_once < 1:
            return False
        if self.shift == "bias":
            return self.offset == 0
        return self.offset > 0 and self.sums_at_once == self._group_steps

    @property
    def sums_at_once(self) -> int:
        """Sums of two products of a group, as they count, that 16 bits hold: 8, 4, 2 or 1."""
        largest = max(self.offset, self.most - self.offset)
        at_once = _INT16 // (2 * largest * _INT8)
        return min(self._group_steps, 1 << at_once.bit_length() - 1)

    @property
    def _group_steps(self) -> int:
        """Fours of channels of a group that is a unit, or half of one."""
        return UNIT // 8 if self.halves else UNIT // 4

    def _takes_activations(self) -> bool:
        if self.activation_bits == 7:
            return self.bits == 8 and self.table is None
        if self.is_wide:
            return self.activation_bits == 16
        return self.activation_bits == 8 or (self.activation_bits, self.pairs_at_once) == (16, 0)

    @property
    def record_groups(self) -> int:
        """Groups whose scales lie together."""
        if self.inner is None:
            return 2 if self.halves else 1
        return 16 if self.halves else 8

    @property
    def shift_bits(self) -> int:
        """Bits of a flat bias or zero point."""
        return {"none": 0, "bias": NUMBER_BITS[self.scale], "zero": 8}[self.shift]

    @property
    def parameter_bits(self) -> int:
        """Bits of scales, and of what is beside them, of a record's output."""
        if self.inner is None:
            return self.record_groups * (NUMBER_BITS[self.scale] + self.shift_bits)
        each = self.record_groups * self.inner.bits + OUTER_BITS
        return each * (2 if self.shift == "bias" else 1)


IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

MADE = {
    "w8a16": Codes(8, 128, "bfloat16", "bias", activation_bits=16),
    "w7a7": Codes(8, NARROW_LEVELS // 2, "bfloat16", "bias", activation_bits=7),
    "w13a13": Codes(WIDE_BITS, 0, "bfloat16", "none", activation_bits=16),
    **{f"int{bits}": Codes(bits, 1 << (bits - 1), "bfloat16", "bias") for bits in (8, 6, 5, 4)},
    "iq4_nl": Codes(
        4, -min(IQ4_NL), "bfloat16", "none", table=tuple(level - min(IQ4_NL) for level in IQ4_NL)
    ),
    "int3.5": Codes(PAIR_BITS, LEVELS // 2, "bfloat16", "bias"),
    **{f"int{bits}": Codes(bits, 1 << (bits - 1), "bfloat16", "bias") for bits in (3, 2)},
}
"""Codes that packing makes, by kinds of formats: asymmetric, or of a table, with flat scales."""
