"""The format of a quantised weight: the meaning of its numbers, without the numbers.

    W[n, k] = outer * scale[n, k] * (T(code[n, k]) - zero[n, k]) - outer_minimum * minimum[n, k]

Scale, zero and minimum belong to a group of rows and columns; the outer numbers to larger groups of
the same rows. T is the code itself, the 8-bit float that it is, or its entry in a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Values: TypeAlias = Literal["integer", "e4m3", "table"]
ScaleType: TypeAlias = Literal["float32", "bfloat16", "float16", "e4m3", "e8m0", "integer"]
Zero: TypeAlias = Literal["none", "integer", "float", "minimum"]

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Numbers of 4 bits by code: a sign, two bits of exponent, one of mantissa."""

IQ4_NL = (
    *(-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0),
    *(1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0),
)
"""Levels by code of llama.cpp's types IQ4_NL and IQ4_XS."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """The meaning of a weight[N K]'s codes as numbers; equal formats can share a kernel.

    name           the publishers' name, for messages
    values         the meaning of a code before it is scaled; "table": an entry of `table`
    bits           of a code
    group_rows     rows that share a scale: 1, a block's, or None for all
    group_columns  columns that share a scale, the last group possibly fewer; None: all
    scale          the number format of scales in the file
    outer          that of the scales' own scale; None where there is none
    zero           the shift of codes: none (codes are signed then), a whole number or a float per
                   group, or a scaled minimum that is subtracted after scaling
    permuted       whether each column names its group, so that groups are no neighbours
    activations    the codes that activations are quantised to as the publisher means it
    stored_bits    bits per weight in the file, scales and zeros included
    """

    name: str
    values: Values
    bits: int
    group_rows: int | None
    group_columns: int | None
    scale: ScaleType
    stored_bits: float
    outer: ScaleType | None = None
    zero: Zero = "none"
    permuted: bool = False
    activations: Literal["int8", "e4m3"] | None = None
    table: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where the fields contradict each other."""
        if (self.table is None) != (self.values != "table"):
            raise ValueError(f"{self.name}: values are {self.values!r}, table is {self.table!r}")
        if self.table is not None and len(self.table) != 1 << self.bits:
            raise ValueError(f"{self.name}: {len(self.table)} entries for {self.bits} bits")

    def __str__(self) -> str:
        """Return the name."""
        return self.name
