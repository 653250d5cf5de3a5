"""The memory layout of packed weights, the same for every instruction set.

64 outputs make a panel. A step holds four bytes of each of them, so 256 bytes: one channel in
float32, two in bfloat16, four in int8, eight in int4. A product of one row reads a panel from
front to back; one of many rows reads it 16 outputs (a block) at a time, from the cache.

    panel    record 0 | record 1 | ...
    record   step 0 | step 1 | ... | scales and what is beside them
    step     output 0: 4 bytes | output 1: 4 bytes | ... | output 63: 4 bytes

    int4     the low halves of an output's four bytes are channels 0 1 2 3 of the step, the high
             halves channels 4 5 6 7

Numbers that are no codes are one record without scales. A record of int2 to int8 is a group, and
ends with 64 scales and 64 biases in bfloat16; other codes and records, some of which begin with
their scales, are described in `codes`.

A quantised value q of n bits stands for (q - offset) * scale + bias, with the offset 2^(n - 1), 5
of the eleven levels of int3.5, or 90 of the 181 of w7a7:
InstantQuant's (q - zero) * scale with the zero point offset - bias / scale. It is unsigned, as
instructions want one factor to be, but in w13a13: that has 16 bits with a sign, and only a scale.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from spaninfer_kernels_cpu.errors import FormatError
from spaninfer_kernels_cpu.quantisation.codes import MADE, UNIT, Codes

LAYOUT = "64 outputs by 256 bytes, 4"
"""Names the order above in files of packed weights; another order takes another name."""

Kind = Literal[
    "float32",
    "bfloat16",
    "w8a16",
    "w7a7",
    "w13a13",
    "int8",
    "int6",
    "int5",
    "int4",
    "iq4_nl",
    "int3.5",
    "int3",
    "int2",
    "codes",
]

LANES = 16
BLOCK_BYTES = 64
PANEL = 64
STEP_BYTES = 256
PARAMETER_BYTES = 4 * PANEL  # scales and biases of a group of weights
ROW_PARAMETER_BYTES = 12  # of a group of activations: see `quantize_activations`

NUMBERS_PER_STEP: dict[str, int] = {"float32": 1, "bfloat16": 2}
GROUPS = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class Format:
    """The kind of the numbers of a packed weight.

    kind      float32, bfloat16, asymmetric int2 to int6, int3.5 or int8, iq4_nl (16 uneven
              levels), w8a16 (int8 for activations of 16 bits), w7a7 (181 levels of weights and of
              activations, so that AVX2 sums two products in 16 bits), w13a13 (13 bits or more of
              weights and of activations, whose products of 128 channels are summed in 32 bits), or
              "codes" that `form` describes
    group     channels that share a scale: 32, 64 or 128; None is a whole row; half a unit in codes
              of halves
    """

    kind: Kind
    group: int | None = None
    form: Codes | None = None

    def __post_init__(self) -> None:
        """Raise unless there is such a format."""
        if (self.kind == "codes") != (self.form is not None):
            raise FormatError(f"form is {self.form} for {self.kind}; it describes 'codes' alone")
        if self.kind not in (*NUMBERS_PER_STEP, *MADE, "codes"):
            allowed = ", ".join((*NUMBERS_PER_STEP, *MADE))
            raise FormatError(f"format is {self.kind!r}; choose one of {allowed}")
        if self.group not in self._groups():
            raise FormatError(
                f"group is {self.group} for {self.form or self.kind}; int2 to int8 take 32, 64, "
                "128 or None (a whole row), w13a13 32, 64 or 128, codes in halves 16, inner scales "
                "16 or 32, other formats None"
            )

    def _groups(self) -> tuple[int | None, ...]:
        if self.codes is None:
            return (None,)
        if self.codes.halves:
            return (self.codes.unit // 2,)
        if self.codes.inner is not None:
            return (UNIT,)
        if self.codes.is_wide:
            return GROUPS
        return (*(group for group in GROUPS if group >= self.codes.unit), None)

    @property
    def codes(self) -> Codes | None:
        """The memory layout of codes; None for floating-point numbers."""
        made = MADE.get(self.kind)
        if made is not None and made.is_paired and self.group == made.unit // 2:
            return replace(made, halves=True)
        return self.form or made

    @property
    def is_quantised(self) -> bool:
        """True if weights are quantised, and activations with them."""
        return self.codes is not None


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes of a packed weight[outputs channels]."""

    format: Format
    outputs: int
    channels: int

    @property
    def panels(self) -> int:
        """Number of panels; the last is filled up with outputs that are not read."""
        return _ceil_div(self.outputs, PANEL)

    @property
    def group_channels(self) -> int:
        """Channels of a group; the last group of a row may have fewer."""
        return self.format.group or max(1, self.channels)

    @property
    def records(self) -> int:
        """Records of a row."""
        codes = self.format.codes
        each = self.group_channels * (1 if codes is None else codes.record_groups)
        return max(1, _ceil_div(self.channels, each))

    @property
    def groups(self) -> int:
        """Groups of a row, with those that fill up the last record."""
        codes = self.format.codes
        return self.records * (1 if codes is None else codes.record_groups)

    @property
    def padded_channels(self) -> int:
        """Channels of a group with those that fill it up."""
        codes = self.format.codes
        if codes is None:
            each = NUMBERS_PER_STEP[self.format.kind]
        else:
            each = codes.unit // 2 if codes.halves else codes.unit
        return _ceil_div(self.group_channels, each) * each

    @property
    def record_channels(self) -> int:
        """Channels of a record, with those that fill it up."""
        return self.padded_channels * (self.groups // self.records)

    @property
    def record_steps(self) -> int:
        """Steps of a record."""
        codes = self.format.codes
        if codes is None:
            return self.record_channels // NUMBERS_PER_STEP[self.format.kind]
        return self.record_channels // codes.unit * codes.bits

    @property
    def record_bytes(self) -> int:
        """Bytes of a record of a panel."""
        codes = self.format.codes
        parameters = 0 if codes is None else codes.parameter_bits // 8 * PANEL
        return self.record_steps * STEP_BYTES + parameters

    @property
    def record_parts(self) -> tuple[slice, slice]:
        """The bytes of a record that are codes, and those that are scales and what is beside."""
        code_bytes = self.record_steps * STEP_BYTES
        codes = self.format.codes
        if codes is None or codes.inner is None:
            return slice(code_bytes), slice(code_bytes, None)
        parameter_bytes = self.record_bytes - code_bytes
        return slice(parameter_bytes, None), slice(parameter_bytes)

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel."""
        return self.records * self.record_bytes


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
