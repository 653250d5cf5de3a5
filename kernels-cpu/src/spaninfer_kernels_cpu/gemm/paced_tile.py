"""Five to eight rows by a panel that comes from memory once, front to back, at an even pace.

Their sums do not stay in registers: two blocks of a group of channels are multiplied, then the
other two, and all sums wait in the nearest cache. Two tiles of four rows multiply as fast where
weights are cached, but read them twice: while the second does, memory rests.
"""

from __future__ import annotations

from typing import Any

from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import smaller
from spaninfer_kernels_cpu.codegen.memory import stack
from spaninfer_kernels_cpu.codegen.prefetch import Lines, ask_for_share, share_of
from spaninfer_kernels_cpu.codegen.specialization import specialized
from spaninfer_kernels_cpu.gemm.amx_tile import Sizes, Strided
from spaninfer_kernels_cpu.gemm.code_dots import add_dots, start_dots
from spaninfer_kernels_cpu.gemm.code_scales import add_scaled, expand_scales
from spaninfer_kernels_cpu.gemm.code_unit import LOWER, UPPER, WHOLE
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.gemm.panel_records import record_parts
from spaninfer_kernels_cpu.gemm.register_tile import (
    add_products,
    load_tile,
    row_addresses,
    store_tile,
    zero_tile,
)
from spaninfer_kernels_cpu.quantisation.layout import (
    BLOCK_BYTES,
    LANES,
    PANEL,
    ROW_PARAMETER_BYTES,
)

Addresses = tuple[int, ...]
Bytes = tuple[int, int]  # an address, and how many
Found = tuple[int, int, int, int]
Places = tuple[int, int]  # of a group's channels in rows, and of its parameters

_BLOCKS = PANEL // LANES
_STEPS = 32  # of numbers: 8 KB of a panel


@device_function
def fill(
    micro: MicroKernel, weights: int, rows: Strided, sizes: Sizes, out: int, coming: Lines
) -> None:
    """Write the products of a panel and of rows to out[micro.rows 64], as `tile_gemm.fill_tile`."""
    part = micro.part
    addresses: Addresses = row_addresses(part, rows[0], rows[1], rows[2])
    for block in range(0, _BLOCKS, part.blocks):
        store_tile(part, zero_tile(part), out + block * BLOCK_BYTES)
    _add_panel(micro, weights, addresses, sizes, out, coming)


@specialized(lambda micro: _add_numbers if micro.codes is None else _add_codes)
def _add_panel(
    micro: MicroKernel, weights: int, rows: Addresses, sizes: Sizes, out: int, coming: Lines
) -> None:
    """Add the products of a panel and of rows to out."""
    raise NotImplementedError("exists in Numba functions only")


def _add_numbers(
    micro: MicroKernel, weights: int, rows: Addresses, sizes: Sizes, out: int, coming: Lines
) -> None:
    part, steps = micro.part, sizes[1] // micro.weight_bytes
    at_once = share_of(coming, (steps + _STEPS - 1) // _STEPS)
    for first in range(0, steps, _STEPS):
        if micro.ahead == 0:
            ask_for_share(coming, first // _STEPS, at_once)
        stop = smaller(steps, first + _STEPS)
        for block in range(0, _BLOCKS, part.blocks):
            place = out + block * BLOCK_BYTES
            sums: Any = load_tile(part, place)
            for step in range(first, stop):
                at = weights + step * micro.weight_bytes + block * BLOCK_BYTES
                sums = add_products(part, sums, at, rows, step * micro.row_bytes)
            store_tile(part, sums, place)


def _add_codes(
    micro: MicroKernel, weights: int, rows: Addresses, sizes: Sizes, out: int, coming: Lines
) -> None:
    part = micro.part
    records, record_bytes, row_record = sizes
    each = micro.groups_at_once
    turns = micro.record_groups // each
    code_bytes, row_bytes = (record_bytes - micro.parameter_bytes) // turns, row_record // turns
    room, row, row_end = stack(micro.scales_room), 0, records * row_record
    at_once = share_of(coming, records * turns)
    for record in range(records):
        codes, scales = record_parts(micro, weights + record * record_bytes, record_bytes)
        for block in range(0, _BLOCKS, part.blocks):
            expand_scales(part, scales, block, room + block * micro.block_scales)
        for turn in range(turns):
            if micro.ahead == 0:
                ask_for_share(coming, record * turns + turn, at_once)
            for block in range(0, _BLOCKS, part.blocks):
                of_block = (codes + turn * code_bytes + block * BLOCK_BYTES, code_bytes)
                found = (scales, room + block * micro.block_scales, block, turn * each)
                to = out + block * BLOCK_BYTES
                _add_groups(part, of_block, found, rows, (row, row_end), to)
            row += row_bytes
            row_end += each * ROW_PARAMETER_BYTES


@specialized(lambda micro: _add_group if micro.groups_at_once == 1 else _add_two_groups)
def _add_groups(
    micro: MicroKernel, codes: Bytes, found: Found, rows: Addresses, places: Places, out: int
) -> None:
    """Add a group of some blocks, or both groups of a unit, to out.

    `found` is as in `code_scales.add_scaled`.
    """
    raise NotImplementedError("exists in Numba functions only")


def _add_group(
    micro: MicroKernel, codes: Bytes, found: Found, rows: Addresses, places: Places, out: int
) -> None:
    row, row_end = places
    dots = start_dots(micro, rows, row_end)
    for unit in range(codes[1] // micro.weight_bytes):
        at = codes[0] + unit * micro.weight_bytes
        dots = add_dots(micro, WHOLE, dots, at, rows, row + unit * micro.row_bytes)
    sums: Any = load_tile(micro, out)
    store_tile(micro, add_scaled(micro, sums, dots, found, rows, row_end), out)


def _add_two_groups(
    micro: MicroKernel, codes: Bytes, found: Found, rows: Addresses, places: Places, out: int
) -> None:
    (row, row_end), (scales, room, block, group) = places, found
    sums: Any = load_tile(micro, out)
    dots = add_dots(micro, LOWER, start_dots(micro, rows, row_end), codes[0], rows, row)
    sums = add_scaled(micro, sums, dots, found, rows, row_end)
    row_end += ROW_PARAMETER_BYTES
    dots = add_dots(micro, UPPER, start_dots(micro, rows, row_end), codes[0], rows, row)
    found = (scales, room, block, group + 1)
    store_tile(micro, add_scaled(micro, sums, dots, found, rows, row_end), out)
