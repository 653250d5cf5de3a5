"""The choice of micro-kernels for a weight format on an ISA level: for one row, a few, many."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spaninfer_kernels_cpu.codegen.amx import TILE_ROWS
from spaninfer_kernels_cpu.codegen.isa_level import IsaLevel
from spaninfer_kernels_cpu.gemm.micro_kernel import (
    EXPANDED_GROUP,
    SMALL_TILE_ROWS,
    SQUARE_BLOCKS,
    SQUARE_ROWS,
    IsaPath,
    MicroKernel,
)
from spaninfer_kernels_cpu.quantisation.codes import Codes
from spaninfer_kernels_cpu.quantisation.layout import LANES, PANEL, Format, Kind

WIDENED_ROWS = 4
PAIRED_ROWS = 8
CODED_ROWS = 4
AHEAD = 4096  # bytes
AVX2_AHEAD = 2048  # bytes
PACED_BLOCKS = 2
WHOLE_ROWS = {8: 6, 4: 4}
"""Rows of a tile that multiplies by whole scales, by the sums that are scaled at once.

In the cache, Gop/s of 2, 3, 4 and 6 rows: Q4_K, eight sums, 192, 205, 196, 230; Q5_K, four, 189,
200, 225, 192 (one core of a Zen 3).
"""
LINE_ROWS, LINE_BLOCKS = TILE_ROWS, PANEL // LANES


def micro_kernels(
    format: Format, *, rounded: bool, level: IsaLevel
) -> tuple[MicroKernel, MicroKernel]:
    """Return the micro-kernels of an ISA level for a weight format: for one row, and for several.

    `rounded`: activations are bfloat16, which matters to weights that are bfloat16 too.
    """
    kind, codes = format.kind, format.codes
    if kind == "bfloat16" and kind in level.tiles:
        # All rows by tiles, one too: so a row has the same sums alone and among others, and is made
        # ready in one way.
        isa_path: IsaPath = "tiles" if rounded else "split tiles"
        line = MicroKernel(kind, isa_path, LINE_ROWS, LINE_BLOCKS, AHEAD)
        return line, MicroKernel(kind, isa_path, SQUARE_ROWS, SQUARE_BLOCKS)
    isa_path = "fma"
    if codes is not None:
        by_wide_activations = codes.activation_bits == 16 and not codes.is_wide
        isa_path = level.wide_dot if by_wide_activations else level.byte_dot
        if isa_path == "madd" and codes.has_whole_scales:
            isa_path = "whole scales"
    elif kind == "bfloat16" and rounded and level.bf16_dot is not None:
        isa_path = level.bf16_dot
    ahead, far = _prefetch(kind, codes, level)
    one = MicroKernel(kind, isa_path, 1, PANEL // LANES, ahead, codes, far=far)
    if kind in level.tiles or (kind in level.tiles_of_rows and format.group is None):
        return one, MicroKernel(kind, "tiles", SQUARE_ROWS, SQUARE_BLOCKS, codes=codes)
    if level.expands == "tiles" and codes is not None and codes.activation_bits <= 8:
        return one, MicroKernel(kind, "expanded tiles", SQUARE_ROWS, SQUARE_BLOCKS, codes=codes)
    if level.expands == "bytes" and _gains_by_bytes(format):
        rows = level.core.expanded_rows
        return one, MicroKernel(kind, "expanded bytes", rows, one.blocks, codes=codes)
    # Where a vector is two registers of sixteen, widened bfloat16 weights take four more, and six
    # rows spill: 64 Gop/s against 83 with four, other kinds are faster with six (EPYC Zen 3). Bytes
    # by pairs have multiplications enough to hide spills: 99 to 101 Gop/s of 192 rows with four,
    # six and eight, but of 8 rows 71 with six, 78 with twice four, 103 with eight; so have pairs of
    # numbers. Others have not: 151, 140 and 131 of 512 narrow rows with four, six and eight (EPYC
    # Zen 3); 118, 114 and 110 of 192 rows of 16 bits with four, five and six, 144, 123 and 108 of
    # int4 with four, six and eight (EPYC, family 25, model 17).
    rows, blocks = level.rows, level.blocks
    if blocks > 1:
        rows, blocks = (level.core.rows, blocks) if codes is None else level.core.code_tile
    if isa_path in ("madd", "whole scales"):  # 256 bits at a time, whatever registers hold
        blocks = 1
    if (kind, isa_path, level.blocks) == ("bfloat16", "fma", 1):
        rows = WIDENED_ROWS
    elif codes is not None and isa_path == "whole scales":
        rows = WHOLE_ROWS[codes.sums_at_once]
    elif codes is not None and isa_path == "madd":
        by_pairs = codes.is_paired or (codes.pairs_at_once == 0 and not codes.is_wide)
        rows = PAIRED_ROWS if by_pairs else CODED_ROWS
    by_parts = kind == "float32" and level.by_parts
    return one, MicroKernel(kind, isa_path, rows, blocks, codes=codes, by_parts=by_parts)


def _prefetch(kind: Kind, codes: Codes | None, level: IsaLevel) -> tuple[int, bool]:
    """Return how many bytes ahead one row asks for weights, and whether into the second cache.

    A core with AVX-512 looks some 500 instructions ahead, 5 KB of bfloat16 or int4. Asking for what
    comes 4 KB later takes 18 % off one row of bfloat16, 15 off int4, 11 off int8, and 26, 18 and 10
    off eight rows; 2 and 8 KB about as much, 1 KB half (two cores of a Xeon). With AVX2 (EPYC Zen
    3) the instructions cost more than they bring, and so it is on a Zen 4 (`CORES`), but for codes
    of several planes, whose words are not read in order: one row of Q6_K reads 18 GB/s with the
    prefetch that is furthest, 8 without one (one core of a Zen 4). float32 is what attention
    multiplies, in the nearest cache.
    """
    has_planes = codes is not None and not codes.is_paired and len(codes.planes) > 1
    if level.blocks == 1 or kind == "float32":
        waits = has_planes or kind == "bfloat16" or (codes is not None and codes.table is not None)
        return (AVX2_AHEAD if waits and level.byte_dot == "madd" else 0), False
    if level.core.ahead > 0:
        return level.core.ahead, level.core.far and codes is not None and codes.bits < 8
    return (2 * AHEAD, True) if has_planes else (0, False)


def _gains_by_bytes(format: Format) -> bool:
    """Return True if many rows are multiplied faster by codes expanded to bytes in larger groups.

    Not by codes of 8 bits, which would be rounded by as much as they were before.
    """
    codes = format.codes
    if codes is None or format.group is None or codes.bits >= 8:
        return False
    return format.group < EXPANDED_GROUP


def small_tile(one: MicroKernel, many: MicroKernel, level: IsaLevel) -> MicroKernel:
    """Return how rows are multiplied that would leave much of a tile for many of them empty.

    Over a panel's whole width where registers allow for more than a block: weights then come from
    memory once, front to back. Else in four turns, none of which asks for what is ahead: all ask
    for the panel that follows.
    """
    if one.uses_amx:
        return one
    has_own = many.expands or many.has_whole_scales
    rows = SMALL_TILE_ROWS if has_own else min(SMALL_TILE_ROWS, many.rows)
    if many.blocks > 1:
        return replace(one, rows=rows, far=one.far or (level.core.far and one.ahead > 0))
    return replace(one, rows=rows, blocks=1, ahead=0, far=False)


@dataclass(frozen=True, slots=True)
class MicroKernels:
    """The micro-kernels of a GEMM: for one row, for a few, for up to twice as many, for many."""

    one: MicroKernel
    small: MicroKernel
    medium: MicroKernel
    many: MicroKernel

    @classmethod
    def of(cls, format: Format, *, rounded: bool, level: IsaLevel) -> MicroKernels:
        """Return those of an ISA level (`micro_kernels`)."""
        one, many = micro_kernels(format, rounded=rounded, level=level)
        small = small_tile(one, many, level)
        return cls(one, small, medium_tile(small, format, level), many)

    @classmethod
    def of_groups(cls, format: Format, *, rounded: bool, level: IsaLevel) -> MicroKernels:
        """Return those of grouped GEMMs: all rows are prepared alike, whatever a group has."""
        return cls.of(format, rounded=rounded, level=replace(level, expands=None))

    @property
    def prepared_apart(self) -> MicroKernel | None:
        """The micro-kernel for many rows if it takes other activations than that for one."""
        return self.many if self.many.expands else None


def _is_cut(few: MicroKernel, format: Format) -> bool:
    """Return True if sums over a part of a panel's channels are float32, in vectors."""
    if few.codes is None:
        return not few.uses_amx
    return format.group is not None and not few.codes.is_paired


def medium_tile(few: MicroKernel, format: Format, level: IsaLevel) -> MicroKernel:
    """Return how up to twice as many rows as those of `small_tile` are multiplied.

    By two tiles of few, the second of which has its weights in the cache, and memory rests. In int4
    by one, though three quarters of its sums do not stay in registers: nibbles are taken apart
    once, and memory is read front to back during all of the arithmetic. 8 rows of 9,728 by 896,
    weights from memory, two cores of a Xeon: 299 µs instead of 336. Tiles of eight rows by two
    blocks keep their sums, but take 349: they read a panel twice, half of each line's neighbours.

    Tiles that do not ask for their own weights ask for the panel that follows, and memory does not
    rest: 8 rows by 96 MB of Q4_0 take 9.4 ms by two small tiles and 11.3 by one that spills, by
    Q4_K 10.9 and 12.3 (one core of a Zen 4). So it is where they ask for theirs in the second
    cache: Q5_K 9.4 and 11.4, Q6_K 9.2 and 10.8.

    On `paced` cores by one tile whose sums are in memory, two blocks of a group at a time: weights
    come front to back, once, as fast as they are used. Of 160 MB, on one core of a Zen 5, in GB/s:
    Q4_0 13 by two small tiles, 16 by this one, Q4_K 15 and 18, Q8_0 20 and 27.
    """
    if level.core.paced and few.blocks > PACED_BLOCKS and _is_cut(few, format):
        return replace(few, rows=2 * few.rows, at_once=PACED_BLOCKS)
    asks_near = few.ahead > 0 and not few.far
    if few.codes is not None and few.code_bits < 8 and few.blocks > 1 and asks_near:
        return replace(few, rows=2 * few.rows)
    return few
