"""Micro-kernels: the ISA path and the tile that a GEMM is compiled for, a constant of kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from spaninfer_kernels_cpu.codegen.amx import TILE_BYTES, TILE_ROWS
from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.isa_level import Bf16Dot, ByteDot
from spaninfer_kernels_cpu.codegen.memory import StackBytes, whole_lines
from spaninfer_kernels_cpu.gemm.dot_product import BF16_DOTS, DOTS
from spaninfer_kernels_cpu.quantisation.codes import UNIT, Codes
from spaninfer_kernels_cpu.quantisation.layout import (
    BLOCK_BYTES,
    LANES,
    NUMBERS_PER_STEP,
    PANEL,
    ROW_PARAMETER_BYTES,
    STEP_BYTES,
    Kind,
    Layout,
)

EXPANDED = Codes(8, 128, "float32", "none")
"""What codes are expanded to in bytes, in groups of EXPANDED_GROUP."""

UNPACKED_CHANNELS = 384  # of a block: 6 KB, or 12 where they take 16 bits, and scales
WIDE_CHANNELS = 768  # of a block of codes of 16 bits: 24 KB, beside 6 of a tile's rows
ROWS_PER_TASK = 192  # a multiple of every tile's rows; their activations stay beside the panel
MOST_ROWS = 256  # of a task that multiplies by tiles, or by expanded codes
EXPANDED_GROUP = 128  # channels that share a scale where codes are expanded to bytes
EXPANDED_CHANNELS = 1024  # of a part of a panel of such bytes: 66 KB
EXPANDED_ABOVE = 32  # rows: a panel is expanded in the time in which 15 are multiplied (Zen 4)
BESIDE = 1 << 20  # bytes of the second cache for activations
K_BLOCK_BYTES = BESIDE // 128
FINISHED_ROWS = 2
SMALL_TILE_ROWS = 4
SQUARE_ROWS, SQUARE_BLOCKS = 2 * TILE_ROWS, 2

IsaPath = (
    ByteDot
    | Bf16Dot
    | Literal["fma", "tiles", "split tiles", "expanded tiles", "expanded bytes", "whole scales"]
)

_AMX_PATHS = ("tiles", "split tiles", "expanded tiles")


@dataclass(frozen=True, slots=True)
class MicroKernel(Constant):
    """The kind of the weights, the ISA path, and the tile: rows by blocks of 16 outputs.

    Bytes of activations follow from the ISA path: float32 for "fma", pairs of bfloat16 for
    BF16_DOTS, codes of 8 bits, or of 16 for weights of 16 and where `dot_product` multiplies those
    of 8 so. "tiles" (`amx_tile`) takes what the kind asks for, bfloat16 or int8; "split tiles"
    float32 as the sum of two bfloat16; "expanded tiles" bfloat16, to which codes are expanded
    (`expanded_panel`); "expanded bytes" codes of 8 bits in larger groups, as weights are then
    (`expanded_bytes`); "whole scales" codes of 8 bits in groups of a record (`whole_scales`).
    Weights `ahead` bytes further are prefetched, into the first cache or, `far`, the second; 0 is
    not at all. `codes` are None of numbers; `unpacked` ones lie as products take them. With
    `at_once` blocks at once, sums are in memory (`paced_tile`). `by_parts`: many rows take some
    channels of a panel, then the next (`channel_parts`).
    """

    kind: Kind
    isa_path: IsaPath
    rows: int
    blocks: int
    ahead: int = 0
    codes: Codes | None = None
    unpacked: bool = False
    far: bool = False
    at_once: int = 0
    by_parts: bool = False

    @property
    def part(self) -> MicroKernel:
        """The micro-kernel for as many blocks as are multiplied at once, of `paced_tile`."""
        return replace(self, blocks=self.at_once, at_once=0)

    @property
    def uses_amx(self) -> bool:
        """True if the GEMM uses AMX tiles."""
        return self.isa_path in _AMX_PATHS

    @property
    def is_quantised(self) -> bool:
        """True if weights are quantised."""
        return self.codes is not None

    @property
    def by_blocks(self) -> bool:
        """True if one row is multiplied block after block, each over all steps of a unit.

        Sums of a panel's four blocks take half of sixteen registers, so codes of several planes
        would spill. Of one plane they do not, and are read front to back: with AVX2 Q8_0 at 18 GB/s
        instead of 11, Q4_0 at 17 instead of 15 (one core of a Zen 3).
        """
        codes = self.codes
        if codes is None or self.rows > 1 or self.isa_path == "vnni512":
            return False
        is_madd = self.isa_path in ("madd", "whole scales")
        return codes.is_paired or len(codes.planes) > 1 or not is_madd

    @property
    def nearness(self) -> int:
        """The cache that weights are asked into, as `vectors.prefetch` counts."""
        return 2 if self.far else 3

    @property
    def unpacks(self) -> bool:
        """True if many rows are multiplied by unpacked blocks (`unpacked_block`).

        Of tiles that multiply 256 bits at a time, where codes are not bytes with flat scales. Those
        of 16 bits are so by lying side by side: 192 rows of 1,536 by 384 at 119 instead of 108
        Gop/s (one core of an EPYC with AVX2, family 25, model 17).
        """
        if self.has_whole_scales:
            return True
        if self.codes is not None and self.codes.is_wide:
            return self.isa_path == "madd"
        if self.codes is None or self.codes.activation_bits != 8 or self.isa_path != "madd":
            return False
        if self.codes.is_paired:
            return False
        return len(self.codes.planes) > 1 or self.codes.inner is not None

    @property
    def expands(self) -> bool:
        """True if rows are multiplied by codes expanded to bfloat16, or to bytes."""
        return self.isa_path in ("expanded tiles", "expanded bytes")

    @property
    def expands_to_bytes(self) -> bool:
        """True if rows are multiplied by codes expanded to bytes (`expanded_bytes`)."""
        return self.isa_path == "expanded bytes"

    @property
    def has_whole_scales(self) -> bool:
        """True if scales are multiplied by in integers (`whole_scales`)."""
        return self.isa_path == "whole scales"

    @property
    def unpacking(self) -> MicroKernel:
        """The micro-kernel that multiplies by unpacked blocks, or by expanded panels."""
        if self.expands_to_bytes:
            return MicroKernel("codes", "vnni512", self.rows, PANEL // LANES, codes=EXPANDED)
        rows = self.rows if self.has_whole_scales else SMALL_TILE_ROWS
        return replace(self, rows=rows, ahead=0, unpacked=True)

    @property
    def unpacked_channels(self) -> int:
        """Channels of a block, or of an expanded panel, that rows go by at a time."""
        if self.expands_to_bytes:
            return EXPANDED_CHANNELS
        is_wide = self.codes is not None and self.codes.is_wide
        return WIDE_CHANNELS if is_wide else UNPACKED_CHANNELS

    @property
    def finishing(self) -> MicroKernel:
        """The shape in which sums that AMX tiles wrote are finished by vectors."""
        return replace(self, rows=FINISHED_ROWS, blocks=PANEL // LANES)

    @property
    def block_room(self) -> StackBytes:
        """Room for such a block, without its scales, or for such a panel."""
        if self.expands_to_bytes:
            groups = EXPANDED_CHANNELS // EXPANDED_GROUP
            return StackBytes(groups * PANEL * (EXPANDED_GROUP + EXPANDED.parameter_bits // 8))
        return StackBytes(2 * LANES * self.unpacked_channels)

    @property
    def unit_bytes(self) -> int:
        """Bytes of a unit of a block of codes, unpacked: in bytes, or in 16 bits for wide ones."""
        return UNIT * LANES * (2 if self.codes is not None and self.codes.pairs_at_once == 0 else 1)

    @property
    def unpacked_scales(self) -> int:
        """Bytes of the float32 scales of a record of a block, and of what is beside them."""
        return 2 * BLOCK_BYTES * self.record_groups

    @property
    def parts(self) -> int:
        """Numbers whose sum an activation is: a row holds the first of all, then the second."""
        return 2 if self.isa_path == "split tiles" else 1

    @property
    def weight_bytes(self) -> int:
        """Bytes of a panel that the inner loop takes at once."""
        return STEP_BYTES * (1 if self.codes is None else self.codes.bits)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of a record of a panel that are not weights."""
        return 0 if self.codes is None else self.codes.parameter_bits // 8 * PANEL

    @property
    def has_inner_scales(self) -> bool:
        """True if scales are on two levels; then they lie in front of a record's codes."""
        return self.codes is not None and self.codes.inner is not None

    @property
    def record_groups(self) -> int:
        """Groups whose scales lie together."""
        return 1 if self.codes is None else self.codes.record_groups

    @property
    def groups_at_once(self) -> int:
        """Groups that share a unit."""
        return 1 if self.codes is None or not self.codes.halves else 2

    @property
    def block_scales(self) -> int:
        """Bytes of what inner scales of a block stand for, and minimums."""
        return self.scales_room.num_bytes // self.blocks

    @property
    def code_bits(self) -> int:
        """Bits of a weight that is a code."""
        return 0 if self.codes is None else self.codes.bits

    @property
    def scales_room(self) -> StackBytes:
        """Room for what inner scales of a record stand for, and minimums: float32."""
        if not self.has_inner_scales:
            return StackBytes(BLOCK_BYTES)
        return StackBytes(2 * BLOCK_BYTES * self.blocks * self.record_groups)

    @property
    def channel_bytes(self) -> int:
        """Bytes of one activation."""
        if self.isa_path == "fma":
            return 4
        if self.uses_amx:
            return 1 if self.is_quantised and not self.expands else 2 * self.parts
        if self.isa_path in BF16_DOTS:
            return 2
        if self.expands_to_bytes:
            return 1
        codes = self.codes
        if codes is None or codes.pairs_at_once > 0:
            return 1
        return 2 if codes.is_wide or DOTS[self.isa_path].wide_activations else 1

    @property
    def has_minimums(self) -> bool:
        """True if groups of codes have a bias, or a minimum."""
        return self.codes is not None and self.codes.shift == "bias"

    @property
    def record_end_bytes(self) -> int:
        """Bytes of what a row ends with, for each record."""
        if self.has_whole_scales:
            return 4 + self.record_groups * (2 if self.has_minimums else 4)
        return ROW_PARAMETER_BYTES * self.record_groups

    @property
    def unit_channels(self) -> int:
        """Channels of a unit of codes."""
        return UNIT if self.codes is None else self.codes.unit

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of activations that the inner loop takes at once."""
        at_once = self.codes.unit if self.codes is not None else NUMBERS_PER_STEP[self.kind]
        return self.channel_bytes * at_once


def expanded_groups(layout: Layout) -> int:
    """Return the groups of a row where codes are expanded to bytes."""
    return -(-layout.groups * layout.padded_channels // EXPANDED_GROUP)


def row_bytes(layout: Layout, micro: MicroKernel) -> int:
    """Return the bytes of a row of activations for a weight: channels, then groups' parameters.

    Whole cache lines: a tile whose rows lie in two lines each loads in 51 cycles instead of 8.
    """
    if micro.expands_to_bytes:
        return whole_lines(expanded_groups(layout) * (EXPANDED_GROUP + ROW_PARAMETER_BYTES))
    num_bytes = layout.groups * layout.padded_channels * micro.channel_bytes
    ends = layout.records * micro.record_end_bytes * layout.format.is_quantised
    return whole_lines(num_bytes + ends)


def k_blocks(layout: Layout, micro: MicroKernel) -> int:
    """Return into how many equal blocks channels are cut for a product by tiles of bfloat16.

    As few as leave room in the second cache for 128 rows of a block, if channels can be cut so
    into whole tiles, some at least; else it is one. Panels are gone over once per block, and what
    each gives is added up.
    """
    if not micro.uses_amx or micro.is_quantised:
        return 1
    tiles, rest = divmod(layout.channels, TILE_BYTES // 2)
    fewest = -(-row_bytes(layout, micro) // K_BLOCK_BYTES)
    counts = range(fewest, min(4 * fewest, tiles // 4) + 1)
    return next((count for count in counts if tiles % count == 0 and rest == 0), 1)


def rows_per_task(layout: Layout, micro: MicroKernel, into: int = 1) -> int:
    """Return the most rows of a task, whose activations come `into` so many blocks of channels."""
    if micro.expands:
        return MOST_ROWS
    if not micro.uses_amx:
        return ROWS_PER_TASK
    fitting = BESIDE // (row_bytes(layout, micro) // into)
    return max(1, min(fitting, MOST_ROWS) // micro.rows) * micro.rows
