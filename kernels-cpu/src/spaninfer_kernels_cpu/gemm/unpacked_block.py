"""Many rows by a panel of codes, a block of outputs and some channels at a time in the L1 cache.

Codes of several planes, and scales under scales, take as many instructions to come apart as a tile
of a few rows takes to be multiplied. For many rows a block of some channels is therefore unpacked
once, side by side as products take it (Goto and van de Geijn 2008), and all rows are multiplied by
it: 252 rows in 0.76 (int6), 0.83 (Q6_K) and 0.84 (Q4_K) of the CPU time, 12 in 0.90, 0.98 and 0.98
(2,048 channels, EPYC with AVX2, 2026-11-23). Sums wait in memory between two parts of the channels
and go on where they stopped, so a row has the same bits as alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import larger, smaller
from spaninfer_kernels_cpu.codegen.memory import StackBytes, stack
from spaninfer_kernels_cpu.codegen.prefetch import Lines, ask_for_share, share_of
from spaninfer_kernels_cpu.codegen.specialization import specialized
from spaninfer_kernels_cpu.gemm.amx_tile import Sizes
from spaninfer_kernels_cpu.gemm.code_dots import add_dots, start_dots
from spaninfer_kernels_cpu.gemm.code_scales import add_scaled, expand_scales
from spaninfer_kernels_cpu.gemm.code_unit import LOWER, UPPER, WHOLE, unpack_unit
from spaninfer_kernels_cpu.gemm.expanded_bytes import expand_codes
from spaninfer_kernels_cpu.gemm.micro_kernel import (
    EXPANDED_CHANNELS,
    EXPANDED_GROUP,
    UNPACKED_CHANNELS,
    MicroKernel,
)
from spaninfer_kernels_cpu.gemm.panel_records import record_parts
from spaninfer_kernels_cpu.gemm.panel_rows import PanelRows
from spaninfer_kernels_cpu.gemm.register_tile import (
    add_bias,
    add_rows,
    ask_rows,
    load_tile,
    row_addresses,
    store_rows,
    store_tile,
    zero_tile,
)
from spaninfer_kernels_cpu.gemm.whole_scales import (
    add_record,
    add_whole,
    write_whole_scales,
    zero_dots,
)
from spaninfer_kernels_cpu.quantisation.codes import UNIT
from spaninfer_kernels_cpu.quantisation.layout import (
    BLOCK_BYTES,
    LANES,
    PANEL,
    ROW_PARAMETER_BYTES,
    STEP_BYTES,
)

BLOCKS = PANEL // LANES

_SCALES = StackBytes(2 * BLOCK_BYTES * UNPACKED_CHANNELS // (UNIT // 2))


class Ending(NamedTuple):
    """The epilogue of the products with a panel: residual + scale * (products + bias).

    Addresses of its first column, in the first row; bias and residual are 0 for none. Without
    `is_direct` products stay in the job's sums.
    """

    is_direct: bool
    out: int
    stride: int
    bias: int
    residual: int
    residual_stride: int
    scale: np.float32


@device_function
def fits(micro: MicroKernel, record_bytes: int) -> bool:
    """Return True if a record has no more channels than the cache is to hold."""
    return _units(micro, record_bytes) * micro.unit_channels <= micro.unpacked_channels


@device_function
def multiply_panel(micro: MicroKernel, job: PanelRows, ending: Ending, coming: Lines) -> None:
    """Write the products of all rows and a panel where `ending` says.

    `coming` are to be on their way to the L2 cache meanwhile.
    """
    tile = micro.unpacking
    each = _records_at_once(micro, job.sizes[1])
    parts = (job.sizes[0] + each - 1) // each
    tiles = (job.num_rows + tile.rows - 1) // tile.rows
    at_once, turn = share_of(coming, parts * (BLOCKS // tile.blocks) * tiles), 0
    rooms = stack(micro.block_room), stack(_SCALES)
    for part in range(parts):
        for block in range(0, BLOCKS, tile.blocks):
            count = unpack(micro, job, part, block, rooms)
            for row in range(0, job.num_rows, tile.rows):
                ask_for_share(coming, turn, at_once)
                turn += 1
                last = job.num_rows - 1 - row
                rows: Any = row_addresses(tile, job.x + row * job.stride, job.stride, last)
                out_at = ending.out + row * ending.stride + block * BLOCK_BYTES
                outs: Any = row_addresses(tile, out_at, ending.stride, last)
                ends = ending.is_direct and part == parts - 1
                if ends:
                    ask_rows(tile, outs)
                out = job.sums + row * STEP_BYTES + block * BLOCK_BYTES
                if part == 0:
                    sums: Any = zero_tile(tile)
                else:
                    sums = load_tile(tile, out)
                sums = multiply_part(tile, sums, rows, (part, count), job.sizes, rooms)
                if ends:
                    end_tile(tile, sums, ending, (row, last, block), outs)
                else:
                    store_tile(tile, sums, out)


@device_function
def end_tile(
    tile: MicroKernel, sums: Any, ending: Ending, place: tuple[int, int, int], outs: Any
) -> None:
    """Write what becomes of a tile; `place`: first row, rows behind it, block of the panel."""
    row, last, block = place
    if ending.bias != 0:
        sums = add_bias(tile, sums, ending.bias + block * BLOCK_BYTES)
    if ending.residual != 0:
        first = ending.residual + row * ending.residual_stride + block * BLOCK_BYTES
        before: Any = row_addresses(tile, first, ending.residual_stride, last)
        sums = add_rows(tile, sums, before, ending.scale)
    store_rows(tile, sums, outs)


@device_function
def _records_at_once(micro: MicroKernel, record_bytes: int) -> int:
    channels = _units(micro, record_bytes) * micro.unit_channels
    at_once: int = larger(1, micro.unpacked_channels // channels)
    return at_once


@device_function
def _units(micro: MicroKernel, record_bytes: int) -> int:
    """Return the units of a record."""
    return (record_bytes - micro.parameter_bytes) // micro.weight_bytes


@specialized(lambda micro: _expand if micro.expands_to_bytes else _unpack)
def unpack(
    micro: MicroKernel, job: PanelRows, part: int, block: int, rooms: tuple[int, int]
) -> int:
    """Write a part of the channels, and their scales; return how many groups of scales it has."""
    raise NotImplementedError("exists in Numba functions only")


def _expand(
    micro: MicroKernel,
    job: PanelRows,
    part: int,
    block: int,  # noqa: ARG001
    rooms: tuple[int, int],
) -> int:
    """Write all blocks as bytes, scales beside them."""
    records, record_bytes, _ = job.sizes
    each, units = _records_at_once(micro, record_bytes), _units(micro, record_bytes)
    first, last = part * each * units, records * units
    return expand_codes(micro, job, first, smaller(last, first + each * units), rooms[0])


def _unpack(
    micro: MicroKernel, job: PanelRows, part: int, block: int, rooms: tuple[int, int]
) -> int:
    records, record_bytes, _ = job.sizes
    each, units = _records_at_once(micro, record_bytes), _units(micro, record_bytes)
    count: int = smaller(each, records - part * each)
    tile, out = micro.unpacking, rooms[0]
    for record in range(count):
        record_at = job.panel + (part * each + record) * record_bytes
        codes, scales = record_parts(micro, record_at, record_bytes)
        for unit in range(units):
            unpack_unit(micro, codes + unit * micro.weight_bytes + block * BLOCK_BYTES, out)
            out += tile.unit_bytes
        write_scales(tile, scales, block, rooms[1] + record * tile.unpacked_scales)
    return count


@specialized(lambda micro: _write_whole if micro.has_whole_scales else _write_floats)
def write_scales(micro: MicroKernel, parameters: int, block: int, room: int) -> None:
    """Write the scales of a record of a block as products take them."""
    raise NotImplementedError("exists in Numba functions only")


def _write_whole(micro: MicroKernel, parameters: int, block: int, room: int) -> None:
    write_whole_scales(micro, parameters, block, room)


def _write_floats(micro: MicroKernel, parameters: int, block: int, room: int) -> None:
    expand_scales(micro, parameters, block, room)


def _choose_part(micro: MicroKernel) -> Any:
    assert micro.codes is not None
    if not micro.unpacked:
        return _multiply_bytes
    if micro.has_whole_scales:
        return _multiply_whole_halves if micro.codes.halves else _multiply_whole_groups
    return _multiply_halves if micro.codes.halves else _multiply_groups


@specialized(_choose_part)
def multiply_part(
    micro: MicroKernel,
    sums: Any,
    rows: Any,
    part: tuple[int, int],
    sizes: Sizes,
    rooms: tuple[int, int],
) -> Any:
    """Return sums + the products of rows and a part: its number, and what `unpack` returned."""
    raise NotImplementedError("exists in Numba functions only")


def _multiply_groups(
    micro: MicroKernel,
    sums: Any,
    rows: Any,
    part: tuple[int, int],
    sizes: Sizes,
    rooms: tuple[int, int],
) -> Any:
    units, at = _units(micro, sizes[1]), rooms[0]
    per_group = units // micro.record_groups
    row, row_end = _part_of_row(micro, part[0], sizes)
    for record in range(part[1]):
        scales = rooms[1] + record * micro.unpacked_scales
        for group in range(micro.record_groups):
            dots = start_dots(micro, rows, row_end)
            for _ in range(per_group):
                dots = add_dots(micro, WHOLE, dots, at, rows, row)
                at += micro.unit_bytes
                row += micro.row_bytes
            sums = add_scaled(micro, sums, dots, (0, scales, 0, group), rows, row_end)
            row_end += ROW_PARAMETER_BYTES
    return sums


def _multiply_halves(
    micro: MicroKernel,
    sums: Any,
    rows: Any,
    part: tuple[int, int],
    sizes: Sizes,
    rooms: tuple[int, int],
) -> Any:
    """Groups are half of a unit."""
    units, at = _units(micro, sizes[1]), rooms[0]
    row, row_end = _part_of_row(micro, part[0], sizes)
    for record in range(part[1]):
        scales = rooms[1] + record * micro.unpacked_scales
        for unit in range(units):
            dots = add_dots(micro, LOWER, start_dots(micro, rows, row_end), at, rows, row)
            sums = add_scaled(micro, sums, dots, (0, scales, 0, 2 * unit), rows, row_end)
            row_end += ROW_PARAMETER_BYTES
            dots = add_dots(micro, UPPER, start_dots(micro, rows, row_end), at, rows, row)
            sums = add_scaled(micro, sums, dots, (0, scales, 0, 2 * unit + 1), rows, row_end)
            row_end += ROW_PARAMETER_BYTES
            at += micro.unit_bytes
            row += micro.row_bytes
    return sums


@device_function
def _part_of_row(micro: MicroKernel, number: int, sizes: Sizes) -> tuple[int, int]:
    """Return where a part begins in a row: its codes, and the parameters of its groups."""
    records, record_bytes, row_record = sizes
    first = number * _records_at_once(micro, record_bytes)
    ends = records * row_record
    return first * row_record, ends + first * micro.record_end_bytes


def _multiply_bytes(
    micro: MicroKernel,
    sums: Any,
    rows: Any,
    part: tuple[int, int],
    sizes: Sizes,
    rooms: tuple[int, int],
) -> Any:
    """Groups are those of expanded codes, and so are those of rows, the last one filled up."""
    at, row = rooms[0], part[0] * EXPANDED_CHANNELS
    ends = (sizes[0] * sizes[2] + EXPANDED_GROUP - 1) // EXPANDED_GROUP * EXPANDED_GROUP
    row_end = ends + row // EXPANDED_GROUP * ROW_PARAMETER_BYTES
    for _ in range(part[1]):
        dots = start_dots(micro, rows, row_end)
        for _ in range(EXPANDED_GROUP // UNIT):
            dots = add_dots(micro, WHOLE, dots, at, rows, row)
            at += micro.weight_bytes
            row += micro.row_bytes
        sums = add_scaled(micro, sums, dots, (at, 0, 0, 0), rows, row_end)
        at += micro.parameter_bytes
        row_end += ROW_PARAMETER_BYTES
    return sums


def _multiply_whole_groups(
    micro: MicroKernel,
    sums: Any,
    rows: Any,
    part: tuple[int, int],
    sizes: Sizes,
    rooms: tuple[int, int],
) -> Any:
    """Groups are summed in integers, records in floats."""
    at = rooms[0]
    row, row_end = _part_of_row(micro, part[0], sizes)
    for record in range(part[1]):
        scales = rooms[1] + record * micro.unpacked_scales
        dots: Any = zero_dots(micro)
        for unit in range(_units(micro, sizes[1])):
            dots = add_whole(micro, WHOLE, dots, at, scales + unit * BLOCK_BYTES, rows, row, 0)
            at += micro.unit_bytes
            row += micro.row_bytes
        sums = add_record(micro, sums, dots, scales, rows, row_end)
        row_end += micro.record_end_bytes
    return sums


def _multiply_whole_halves(
    micro: MicroKernel,
    sums: Any,
    rows: Any,
    part: tuple[int, int],
    sizes: Sizes,
    rooms: tuple[int, int],
) -> Any:
    """The same of groups that are half of a unit."""
    at = rooms[0]
    row, row_end = _part_of_row(micro, part[0], sizes)
    for record in range(part[1]):
        scales = rooms[1] + record * micro.unpacked_scales
        dots: Any = zero_dots(micro)
        for unit in range(_units(micro, sizes[1])):
            scales_at = scales + 2 * unit * BLOCK_BYTES
            end = row_end + 4 + 8 * unit  # of the group, if 16-bit sums begin with that
            dots = add_whole(micro, LOWER, dots, at, scales_at, rows, row, end)
            scales_at += BLOCK_BYTES
            dots = add_whole(micro, UPPER, dots, at, scales_at, rows, row, end + 4)
            at += micro.unit_bytes
            row += micro.row_bytes
        sums = add_record(micro, sums, dots, scales, rows, row_end)
        row_end += micro.record_end_bytes
    return sums
