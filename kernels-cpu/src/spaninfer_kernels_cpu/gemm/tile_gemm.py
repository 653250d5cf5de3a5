"""A tile of a GEMM: a few rows by a panel of 64 outputs, for Numba functions to call."""

from __future__ import annotations

from typing import Any

from spaninfer_kernels_cpu.codegen import amx
from spaninfer_kernels_cpu.codegen.elements import smaller
from spaninfer_kernels_cpu.codegen.inline_function import always_inline
from spaninfer_kernels_cpu.codegen.memory import stack
from spaninfer_kernels_cpu.codegen.prefetch import Lines, ask_for_share, part_of, share_of
from spaninfer_kernels_cpu.codegen.specialization import specialized
from spaninfer_kernels_cpu.gemm import paced_tile
from spaninfer_kernels_cpu.gemm.amx_tile import Sizes, Strided, fill_line
from spaninfer_kernels_cpu.gemm.code_dots import add_dots, add_half_dots, start_dots
from spaninfer_kernels_cpu.gemm.code_scales import add_scaled, expand_scales
from spaninfer_kernels_cpu.gemm.code_unit import LOWER, UPPER, WHOLE
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.gemm.panel_records import record_parts
from spaninfer_kernels_cpu.gemm.register_tile import (
    add_products,
    row_addresses,
    store_tile,
    zero_tile,
)
from spaninfer_kernels_cpu.gemm.whole_scales import (
    add_record,
    add_whole,
    write_whole_scales,
    zero_dots,
)
from spaninfer_kernels_cpu.quantisation.layout import (
    BLOCK_BYTES,
    LANES,
    PANEL,
    ROW_PARAMETER_BYTES,
)

Tile = Any  # a tuple of vectors
Addresses = tuple[int, ...]

BLOCKS = PANEL // LANES

_STEPS = 32  # of numbers between two requests: 8 KB of a panel


def _choose_fill(micro: MicroKernel) -> Any:
    if micro.uses_amx:
        return _fill_line
    return _fill_at_a_pace if micro.at_once > 0 else _fill_by_vectors


@specialized(_choose_fill)
def fill_tile(
    micro: MicroKernel, weights: int, rows: Strided, sizes: Sizes, out: int, coming: Lines
) -> None:
    """Write the products of a panel and of rows to out[micro.rows 64], float32.

    Rows of out behind the last of `rows` hold anything. `coming` are to be on their way to the
    second cache meanwhile. AMX tiles fill lines so (`amx_tile`), and not squares.
    """
    raise NotImplementedError("exists in Numba functions only")


def _fill_by_vectors(
    micro: MicroKernel, weights: int, rows: Strided, sizes: Sizes, out: int, coming: Lines
) -> None:
    addresses: Addresses = row_addresses(micro, rows[0], rows[1], rows[2])
    for block in range(0, BLOCKS, micro.blocks):
        number, count = block // micro.blocks, BLOCKS // micro.blocks
        sums = multiply(micro, weights, addresses, block, sizes, part_of(coming, number, count))
        store_tile(micro, sums, out + block * BLOCK_BYTES)


def _fill_at_a_pace(
    micro: MicroKernel, weights: int, rows: Strided, sizes: Sizes, out: int, coming: Lines
) -> None:
    paced_tile.fill(micro, weights, rows, sizes, out, coming)


def _fill_line(
    micro: MicroKernel,
    weights: int,
    rows: Strided,
    sizes: Sizes,
    out: int,
    coming: Lines,  # noqa: ARG001
) -> None:
    fill_line(micro, weights, rows, sizes, out)


@specialized(lambda micro: _release if micro.uses_amx else _keep)
def release_amx(micro: MicroKernel) -> None:
    """Give back what tiles took and kept for the next ones: once per task, it is slow."""
    raise NotImplementedError("exists in Numba functions only")


def _release(micro: MicroKernel) -> None:  # noqa: ARG001
    amx.release()


def _keep(micro: MicroKernel) -> None:
    pass


def _choose_multiply(micro: MicroKernel) -> Any:
    if micro.codes is None:
        return _multiply_some_numbers if micro.rows > 1 and micro.blocks == 1 else _multiply_numbers
    if micro.has_whole_scales:
        return _multiply_whole_halves if micro.codes.halves else _multiply_whole_groups
    if not micro.codes.halves:
        return _multiply_quantised
    return _multiply_half_pairs if micro.codes.is_paired else _multiply_halves


@specialized(_choose_multiply)
def multiply(
    micro: MicroKernel,
    weights: int,
    rows: Addresses,
    block: int,
    sizes: Sizes,
    coming: Lines,
) -> Tile:
    """Return the products of a panel's blocks from `block` with rows, over all channels.

    `sizes` and `coming` are as in `fill_tile`.
    """
    raise NotImplementedError("exists in Numba functions only")


@always_inline
def _multiply_numbers(
    micro: MicroKernel,
    weights: int,
    rows: Addresses,
    block: int,
    sizes: Sizes,
    coming: Lines,
) -> Tile:
    _, group_bytes, _ = sizes
    weights += block * BLOCK_BYTES
    # All at once: between steps of 25 cycles, requests cost one row more than they bring many.
    ask_for_share(coming, 0, coming[1])
    sums: Tile = zero_tile(micro)
    for step in range(group_bytes // micro.weight_bytes):
        sums = add_products(
            micro,
            sums,
            weights + step * micro.weight_bytes,
            rows,
            step * micro.row_bytes,
        )
    return sums


@always_inline
def _multiply_some_numbers(
    micro: MicroKernel,
    weights: int,
    rows: Addresses,
    block: int,
    sizes: Sizes,
    coming: Lines,
) -> Tile:
    """Ask for what is coming a few steps at a time.

    8 rows of bfloat16 from memory: 67 Gop/s instead of 43 (one core of a Zen 3).
    """
    steps = sizes[1] // micro.weight_bytes
    weights += block * BLOCK_BYTES
    at_once = share_of(coming, (steps + _STEPS - 1) // _STEPS)
    sums: Tile = zero_tile(micro)
    for first in range(0, steps, _STEPS):
        ask_for_share(coming, first // _STEPS, at_once)
        for step in range(first, smaller(steps, first + _STEPS)):
            at = weights + step * micro.weight_bytes
            sums = add_products(micro, sums, at, rows, step * micro.row_bytes)
    return sums


@always_inline
def _multiply_quantised(
    micro: MicroKernel,
    weights: int,
    rows: Addresses,
    block: int,
    sizes: Sizes,
    coming: Lines,
) -> Tile:
    records, record_bytes, row_record = sizes
    each = micro.record_groups
    row_group = row_record // each
    group_bytes = (record_bytes - micro.parameter_bytes) // each
    ends, room = records * row_record, stack(micro.scales_room)
    sums: Tile = zero_tile(micro)
    at_once = share_of(coming, records * each)
    for record in range(records):
        codes, scales = record_parts(micro, weights + record * record_bytes, record_bytes)
        expand_scales(micro, scales, block, room)
        for group in range(each):
            if micro.ahead == 0:  # else nothing is coming but the tile's own weights
                ask_for_share(coming, record * each + group, at_once)
            row = record * row_record + group * row_group
            row_end = ends + (record * each + group) * ROW_PARAMETER_BYTES
            at = codes + group * group_bytes + block * BLOCK_BYTES
            dots = start_dots(micro, rows, row_end)
            for unit in range(group_bytes // micro.weight_bytes):
                weights_at = at + unit * micro.weight_bytes
                dots = add_dots(micro, WHOLE, dots, weights_at, rows, row + unit * micro.row_bytes)
            sums = add_scaled(micro, sums, dots, (scales, room, block, group), rows, row_end)
    return sums


@always_inline
def _multiply_halves(
    micro: MicroKernel,
    weights: int,
    rows: Addresses,
    block: int,
    sizes: Sizes,
    coming: Lines,
) -> Tile:
    """Groups are half of what the inner loop takes at once."""
    records, record_bytes, row_record = sizes
    units = micro.record_groups // 2
    ends, room = records * row_record, stack(micro.scales_room)
    sums: Tile = zero_tile(micro)
    at_once = share_of(coming, records * units)
    for record in range(records):
        codes, scales = record_parts(micro, weights + record * record_bytes, record_bytes)
        expand_scales(micro, scales, block, room)
        for unit in range(units):
            if micro.ahead == 0:
                ask_for_share(coming, record * units + unit, at_once)
            row = record * row_record + unit * micro.row_bytes
            row_end = ends + 2 * (record * units + unit) * ROW_PARAMETER_BYTES
            at = codes + unit * micro.weight_bytes + block * BLOCK_BYTES
            dots = add_dots(micro, LOWER, start_dots(micro, rows, row_end), at, rows, row)
            sums = add_scaled(micro, sums, dots, (scales, room, block, 2 * unit), rows, row_end)
            row_end += ROW_PARAMETER_BYTES
            dots = add_dots(micro, UPPER, start_dots(micro, rows, row_end), at, rows, row)
            sums = add_scaled(micro, sums, dots, (scales, room, block, 2 * unit + 1), rows, row_end)
    return sums


@always_inline
def _multiply_half_pairs(
    micro: MicroKernel,
    weights: int,
    rows: Addresses,
    block: int,
    sizes: Sizes,
    coming: Lines,
) -> Tile:
    """Two groups share a unit of pairs."""
    records, record_bytes, row_record = sizes
    ends = records * row_record
    sums: Tile = zero_tile(micro)
    at_once = share_of(coming, 2 * records)
    for number in range(2 * records):
        if micro.ahead == 0:
            ask_for_share(coming, number, at_once)
        half, row = number & 1, number * (row_record // 2)
        codes = weights + (number >> 1) * record_bytes
        row_end = ends + number * ROW_PARAMETER_BYTES
        dots = start_dots(micro, rows, row_end)
        dots = add_half_dots(micro, dots, codes + block * BLOCK_BYTES, half, rows, row)
        scales = (codes + micro.weight_bytes, 0, block, half)
        sums = add_scaled(micro, sums, dots, scales, rows, row_end)
    return sums


def _multiply_whole_groups(
    micro: MicroKernel,
    weights: int,
    rows: Addresses,
    block: int,
    sizes: Sizes,
    coming: Lines,
) -> Tile:
    """Groups are summed in integers, records in floats (`whole_scales`)."""
    records, record_bytes, row_record = sizes
    units = (record_bytes - micro.parameter_bytes) // micro.weight_bytes
    row, row_end, room = 0, records * row_record, stack(micro.scales_room)
    sums: Tile = zero_tile(micro)
    at_once = share_of(coming, records * units)
    for record in range(records):
        codes, scales = record_parts(micro, weights + record * record_bytes, record_bytes)
        write_whole_scales(micro, scales, block, room)
        at = codes + block * BLOCK_BYTES
        dots: Any = zero_dots(micro)
        for unit in range(units):
            if micro.ahead == 0:
                ask_for_share(coming, record * units + unit, at_once)
            dots = add_whole(micro, WHOLE, dots, at, room + unit * BLOCK_BYTES, rows, row, 0)
            at += micro.weight_bytes
            row += micro.row_bytes
        sums = add_record(micro, sums, dots, room, rows, row_end)
        row_end += micro.record_end_bytes
    return sums


def _multiply_whole_halves(
    micro: MicroKernel,
    weights: int,
    rows: Addresses,
    block: int,
    sizes: Sizes,
    coming: Lines,
) -> Tile:
    """The same of groups that are half of a unit."""
    records, record_bytes, row_record = sizes
    units = (record_bytes - micro.parameter_bytes) // micro.weight_bytes
    row, row_end, room = 0, records * row_record, stack(micro.scales_room)
    sums: Tile = zero_tile(micro)
    at_once = share_of(coming, records * units)
    for record in range(records):
        codes, scales = record_parts(micro, weights + record * record_bytes, record_bytes)
        write_whole_scales(micro, scales, block, room)
        at = codes + block * BLOCK_BYTES
        dots: Any = zero_dots(micro)
        for unit in range(units):
            if micro.ahead == 0:
                ask_for_share(coming, record * units + unit, at_once)
            scales_at = room + 2 * unit * BLOCK_BYTES
            end = row_end + 4 + 8 * unit  # of the group, if 16-bit sums begin with that
            dots = add_whole(micro, LOWER, dots, at, scales_at, rows, row, end)
            scales_at += BLOCK_BYTES
            dots = add_whole(micro, UPPER, dots, at, scales_at, rows, row, end + 4)
            at += micro.weight_bytes
            row += micro.row_bytes
        sums = add_record(micro, sums, dots, room, rows, row_end)
        row_end += micro.record_end_bytes
    return sums
