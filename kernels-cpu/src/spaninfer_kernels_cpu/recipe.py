"""What a matrix product is compiled for, as a constant that Numba functions hand on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from spaninfer_kernels_cpu.constants import Constant
from spaninfer_kernels_cpu.dots import BF16_DOTS, DOTS
from spaninfer_kernels_cpu.layout import (
    CENTRE,
    CHANNELS_PER_STEP,
    LANES,
    PANEL,
    PARAMETER_BYTES,
    ROW_PARAMETER_BYTES,
    STEP_BYTES,
    STEPS_AT_ONCE,
    Kind,
    Layout,
)
from spaninfer_kernels_cpu.memory import whole_lines
from spaninfer_kernels_cpu.tiers import Bf16Dot, ByteDot, Tier

WIDENED_ROWS = 4
PAIRED_ROWS = 8
AHEAD = 4096  # bytes
FEW_ROWS = 4
TILE_ROWS = 32  # of a product by tiles: two tiles of activations

Way = ByteDot | Bf16Dot | Literal["fma", "tiles"]


@dataclass(frozen=True, slots=True)
class Recipe(Constant):
    """The kind of the weights, the way of multiplying, and the tile: rows by blocks of 16 outputs.

    Bytes of activations follow from the way: float32 for "fma", pairs of bfloat16 for BF16_DOTS,
    codes of 8 bits, or of 16 where `dots` multiplies 8-bit weights so. "tiles" (`amx_kernel`)
    takes what the kind asks for: bfloat16 or codes of 8 bits. Weights `ahead` bytes further are
    asked for in advance; 0 is not at all.
    """

    kind: Kind
    way: Way
    rows: int
    blocks: int
    ahead: int = 0

    @property
    def weight_bytes(self) -> int:
        """Bytes of a panel that the inner loop takes at once."""
        return STEP_BYTES * STEPS_AT_ONCE[self.kind]

    @property
    def parameter_bytes(self) -> int:
        """Bytes of a group of a panel that are not weights."""
        return PARAMETER_BYTES if self.kind in CENTRE else 0

    @property
    def code_bits(self) -> int:
        """Bits of a weight that is a code."""
        return 4 if self.kind == "int4" else 8

    @property
    def centre(self) -> int:
        """The code from which weights that are codes count."""
        return CENTRE[self.kind]

    @property
    def channel_bytes(self) -> int:
        """Bytes of one activation."""
        if self.way == "fma":
            return 4
        if self.way == "tiles":
            return 2 if self.kind == "bfloat16" else 1
        if self.way in BF16_DOTS:
            return 2
        return 2 if self.kind == "int8" and DOTS[self.way].wide_codes else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of activations that the inner loop takes at once."""
        return self.channel_bytes * CHANNELS_PER_STEP[self.kind] * STEPS_AT_ONCE[self.kind]


def recipes(kind: Kind, *, rounded: bool, tier: Tier) -> tuple[Recipe, Recipe]:
    """Return how a tier multiplies one row with weights of a kind, and how several.

    `rounded`: activations are bfloat16, which matters to weights that are bfloat16 too.
    """
    way: Way = "fma"
    if kind in ("int8", "int4"):
        way = tier.byte_dot
    elif kind == "bfloat16" and rounded and tier.bf16_dot is not None:
        way = tier.bf16_dot
    # A core with AVX-512 looks some 500 instructions ahead, 5 KB of bfloat16 or int4. Asking for
    # what comes 4 KB later takes 18 % off one row of bfloat16, 15 off int4, 11 off int8, and 26, 18
    # and 10 off eight rows; 2 and 8 KB about as much, 1 KB half (two cores of a Xeon). With AVX2
    # (EPYC Zen 3) the instructions cost more than they bring. float32 is what attention multiplies,
    # in the nearest cache.
    ahead = AHEAD if tier.blocks > 1 and kind != "float32" else 0
    one = Recipe(kind, way, 1, PANEL // LANES, ahead)
    if kind in tier.tiles and way != "fma":
        return one, Recipe(kind, "tiles", TILE_ROWS, PANEL // LANES)
    # Where a vector is two registers of sixteen, widened bfloat16 weights take four more, and six
    # rows spill: 64 Gop/s against 83 with four, other kinds are faster with six (EPYC Zen 3). Bytes
    # by pairs have multiplications enough to hide spills: 99 to 101 Gop/s of 192 rows with four,
    # six and eight, but of 8 rows 71 with six, 78 with twice four, 103 with eight.
    rows, blocks = tier.rows, tier.blocks
    if (kind, way, tier.blocks) == ("bfloat16", "fma", 1):
        rows = WIDENED_ROWS
    elif (kind, way) == ("int8", "madd"):
        rows = PAIRED_ROWS
    return one, Recipe(kind, way, rows, blocks)


def row_bytes(layout: Layout, recipe: Recipe) -> int:
    """Return the bytes of a row of activations for a weight: channels, then groups' parameters.

    Whole cache lines: a tile whose rows lie in two lines each loads in 51 cycles instead of 8.
    """
    num_bytes = layout.groups * layout.padded_channels * recipe.channel_bytes
    return whole_lines(num_bytes + layout.groups * ROW_PARAMETER_BYTES * layout.format.has_codes)


def few_rows(one: Recipe, many: Recipe) -> Recipe:
    """Return how rows are multiplied that would leave much of a tile for many of them empty.

    Over a panel's whole width where registers allow for more than a block: weights then come from
    memory once, front to back.
    """
    blocks = one.blocks if many.blocks > 1 else 1
    return Recipe(many.kind, one.way, min(FEW_ROWS, many.rows), blocks, one.ahead)


def some_rows(few: Recipe) -> Recipe:
    """Return how up to twice as many rows as those of `few_rows` are multiplied.

    By two tiles of few, the second of which has its weights in the cache, and memory rests. In int4
    by one, though three quarters of its sums do not stay in registers: nibbles are taken apart
    once, and memory is read front to back during all of the arithmetic. 8 rows of 9,728 by 896,
    weights from memory, two cores of a Xeon: 299 µs instead of 336. Tiles of eight rows by two
    blocks keep their sums, but take 349: they read a panel twice, half of each line's neighbours.
    """
    if few.kind == "int4" and few.blocks > 1:
        return replace(few, rows=2 * few.rows)
    return few
