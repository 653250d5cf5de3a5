"""A task of a GEMM with packed weights (a GEMV at one token), for `gemm_call`, which fills in its
arguments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.array_view import floats_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import read_index, read_int64, smaller
from spaninfer_kernels_cpu.codegen.inline_function import always_inline
from spaninfer_kernels_cpu.codegen.kernel import Kernel, variants
from spaninfer_kernels_cpu.codegen.memory import CACHE_LINE, StackBytes, stack
from spaninfer_kernels_cpu.codegen.prefetch import Lines, ask_to_write
from spaninfer_kernels_cpu.codegen.specialization import specialized
from spaninfer_kernels_cpu.elementwise.activations import Activation
from spaninfer_kernels_cpu.gemm.amx_rows import multiply_by_amx
from spaninfer_kernels_cpu.gemm.amx_tile import Sizes
from spaninfer_kernels_cpu.gemm.channel_parts import PARTS_FROM, multiply_by_parts
from spaninfer_kernels_cpu.gemm.epilogue import activate, activate_rows, ending_of, write_row
from spaninfer_kernels_cpu.gemm.gemm_arguments import GemmArguments, Job
from spaninfer_kernels_cpu.gemm.gemm_tiles import GemmTiles
from spaninfer_kernels_cpu.gemm.micro_kernel import (
    MOST_ROWS,
    ROWS_PER_TASK,
    MicroKernel,
)
from spaninfer_kernels_cpu.gemm.panel_records import row_record_bytes
from spaninfer_kernels_cpu.gemm.panel_rows import PanelRows
from spaninfer_kernels_cpu.gemm.register_tile import row_addresses
from spaninfer_kernels_cpu.gemm.tile_gemm import fill_tile, multiply, release_amx
from spaninfer_kernels_cpu.gemm.unpacked_block import (
    end_tile,
    fits,
    multiply_panel,
)
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, LANES, PANEL, STEP_BYTES
from spaninfer_kernels_cpu.runtime.call import row_at

Floats = NDArray[np.float32]

_SUMS = StackBytes(STEP_BYTES * (MOST_ROWS + 8))  # a tile writes past the last row

SEGMENT_NUMBERS = 3  # int32 of a segment: an expert, its first row, the row behind its last


@variants
def gemm_kernel(tiles: GemmTiles) -> Kernel:
    """Return the kernel that multiplies by these micro-kernels.

    A task multiplies a chunk of the panels by an equal part of the rows, up to `rows_per_task`, or
    by the rows of an expert's segment. For gated GEMMs, a chunk holds gate panels and the matching
    up panels: for few rows all gates come first, so that memory is read in two long streams, else
    gate and up alternate. Many rows go through the chunk once for each block of channels; few take
    all channels of a panel, as it lies in memory. While the tile for many rows computes, the next
    panel and the tile's outputs are prefetched.
    """
    tile_room = StackBytes(4 * PANEL * max(tiles.medium.rows, tiles.large.rows))
    gates_room = StackBytes(4 * PANEL * MOST_ROWS * tiles.large.uses_amx)

    def gemm(arguments: GemmArguments, rows: int, task: int) -> None:
        segments, chunks = arguments.segments, arguments.chunks.starts
        weights, most = arguments.panels, arguments.rows_per_task
        tile_rows, few = tiles.large.rows, tiles.medium.rows
        if segments == 0:
            blocks = (rows + most - 1) // most
            chunk = task // blocks
            part = (rows + blocks * tile_rows - 1) // (blocks * tile_rows) * tile_rows
            first = smaller(rows, task % blocks * part)
            stop = smaller(rows, first + part)
        else:
            count = arguments.chunks.count
            segment, chunk = task // count * SEGMENT_NUMBERS, task % count
            of_expert = arguments.weight.panels * arguments.weight.panel_bytes
            weights += read_index(segments, segment) * of_expert
            first, stop = read_index(segments, segment + 1), read_index(segments, segment + 2)
        tile, gates, half = stack(tile_room), stack(gates_room), arguments.half
        k_blocks = arguments.k_blocks
        together = 1 if rows > few else k_blocks
        for k_block in range(0, k_blocks, together):
            begin, end = read_int64(chunks, chunk), read_int64(chunks, chunk + 1)
            at_once = 1 if half != 0 and rows > few else end - begin
            while begin < end:
                for turn in range(2 * at_once if half != 0 else at_once):
                    panel = begin + turn if turn < at_once else begin + turn - at_once + half
                    for number in range(k_block, k_block + together):
                        job = Job(arguments, weights, tile, gates, panel, number, rows)
                        multiply_rows(tiles, job, end, first, stop)
                begin += at_once
        release_amx(tiles.large)

    return gemm


def _choose_multiply_rows(tiles: GemmTiles) -> Any:
    if tiles.large.uses_amx:
        return _by_amx
    if tiles.large.expands:
        return _by_expanded_bytes
    if tiles.large.by_parts:
        return _by_channel_parts
    return _by_unpacked_blocks if tiles.large.unpacks else _by_tiles


@specialized(_choose_multiply_rows)
def multiply_rows(tiles: GemmTiles, job: Job, end: int, first: int, stop: int) -> None:
    """Multiply rows from `first` to `stop` by a block of a panel, of a chunk up to `end`."""
    raise NotImplementedError("exists in Numba functions only")


def _by_unpacked_blocks(tiles: GemmTiles, job: Job, end: int, first: int, stop: int) -> None:
    """Multiply a few rows by tiles, and more by unpacked blocks of the panel."""
    weight = job.arguments.weight
    if stop - first <= tiles.few or not fits(tiles.large, weight.panel_bytes // weight.records):
        _multiply_rows(tiles, job, end, first, stop)
    else:
        _multiply_blocks(tiles, job, end, first, stop)


def _by_expanded_bytes(tiles: GemmTiles, job: Job, end: int, first: int, stop: int) -> None:
    """Multiply a few rows by tiles of codes, and more by a panel expanded to bytes.

    By the number of all rows: they were prepared for the one or the other.
    """
    if job.rows > tiles.few:
        _multiply_blocks(tiles, job, end, first, stop)
    else:
        _multiply_few(tiles, job, end, first, stop)


@device_function
def _multiply_blocks(tiles: GemmTiles, job: Job, end: int, first: int, stop: int) -> None:
    """Multiply rows by what `unpacked_block` makes of the panel."""
    following, lines = _following(job, end), 0
    if following != 0:
        lines = _k_block_bytes(job.arguments) // CACHE_LINE
    sums = stack(_SUMS)
    for start in range(first, stop, MOST_ROWS):
        count = smaller(MOST_ROWS, stop - start)
        rows, ending = _panel_rows(tiles, job, start, count, sums), ending_of(job, start)
        multiply_panel(tiles.large, rows, ending, (following, lines))
        lines = 0
        for row in range(count):
            if not ending.is_direct:
                write_row(tiles.activation, job, start + row, sums + row * STEP_BYTES)
            elif job.arguments.activated != 0:
                out = floats_at(ending.out + row * ending.stride, PANEL)
                activate(tiles.activation, out, PANEL)


def _by_amx(tiles: GemmTiles, job: Job, end: int, first: int, stop: int) -> None:
    """Multiply a few rows by small tiles, and more by parts of the panel.

    Where codes are expanded by the number of all rows: they were prepared for the one or the other.
    """
    expands, small = tiles.large.expands, tiles.small.rows
    if (job.rows <= tiles.few) if expands else (stop - first <= small):
        _multiply_few(tiles, job, end, first, stop)
    else:
        coming = _coming(job, _following(job, end), 0, 1, 1)
        for start in range(first, stop, MOST_ROWS):
            count = smaller(MOST_ROWS, stop - start)
            sums = job.gates if job.panel < job.arguments.half else stack(_SUMS)
            rows = _panel_rows(tiles, job, start, count, sums)
            multiply_by_amx(tiles, job, rows, start, coming)
            coming = (0, 0)


@device_function
def _multiply_few(tiles: GemmTiles, job: Job, end: int, first: int, stop: int) -> None:
    following, start = _following(job, end), first
    while start < stop:
        start += _few(tiles, job, first, start, stop, following)


@device_function
def _panel_rows(tiles: GemmTiles, job: Job, first: int, count: int, sums: int) -> PanelRows:
    x, panel_at, sizes = _operands(tiles.large, job, first)
    return PanelRows(x, job.arguments.x.stride, count, panel_at, sizes, sums)


def _by_channel_parts(tiles: GemmTiles, job: Job, end: int, first: int, stop: int) -> None:
    """Multiply a few rows by all channels, and more by some, then the next."""
    if stop - first < PARTS_FROM:
        _multiply_rows(tiles, job, end, first, stop)
    else:
        sums = stack(_SUMS)
        for start in range(first, stop, ROWS_PER_TASK):
            count = smaller(ROWS_PER_TASK, stop - start)
            rows, ending = _panel_rows(tiles, job, start, count, sums), ending_of(job, start)
            multiply_by_parts(tiles.large, rows, ending, _following(job, end))
            if ending.is_direct:
                activate_rows(tiles.activation, job, ending, 0, count)
            else:
                for row in range(count):
                    write_row(tiles.activation, job, start + row, sums + row * STEP_BYTES)


def _by_tiles(tiles: GemmTiles, job: Job, end: int, first: int, stop: int) -> None:
    _multiply_rows(tiles, job, end, first, stop)


@device_function
def _multiply_rows(tiles: GemmTiles, job: Job, end: int, first: int, stop: int) -> None:
    # Up to twice as many rows as a small tile has are done by a medium one, or by two small ones
    # unless one of the largest does them.
    small, medium, large = tiles.small.rows, tiles.medium.rows, tiles.large.rows
    least = small if medium > small else large
    following = _following(job, end)
    start = first
    while start < stop:
        left = stop - start
        if left <= small or least < left <= 2 * small:
            start += _few(tiles, job, first, start, stop, following)
        else:
            _ask_outputs(tiles.large, job, start, stop)
            coming = _coming(job, following, start - first, large, stop - first)
            start += _large_tile(tiles, job, start, stop, coming)


@device_function
def _few(tiles: GemmTiles, job: Job, first: int, start: int, stop: int, following: int) -> int:
    """Multiply rows from `start` on by a tile for a few; return how many rows it has.

    Of the rows from `first` to `stop`, which take the panel that follows into the L2 cache, unless
    tiles ask for their own weights. One row alone waits for memory whatever it asks for.
    """
    left, small, medium = stop - start, tiles.small.rows, tiles.medium.rows
    if left == 1:
        return _tile(tiles.one, tiles.activation, job, start, stop, (0, 0))
    if left <= small:
        coming = _coming(job, following, start - first, small, stop - first)
        return _tile(tiles.small, tiles.activation, job, start, stop, coming)
    coming = _coming(job, following, start - first, medium, stop - first)
    return _tile(tiles.medium, tiles.activation, job, start, stop, coming)


@device_function
def _following(job: Job, end: int) -> int:
    """Return the address of what this thread multiplies next, 0 if there may be nothing.

    Behind a chunk it is a guess: the last chunks are of a panel each, which threads take in turns.
    """
    arguments, panel = job.arguments, job.panel
    half, chunks = arguments.half, arguments.chunks
    if half != 0 and panel < half:
        following = panel + half
    else:
        following = panel + 1 - half
        if following == end:
            following += arguments.threads - 1
        if following >= read_int64(chunks.starts, chunks.count):  # where the last chunk ends
            return 0
    panel_at = job.weights + following * arguments.weight.panel_bytes
    return panel_at + job.k_block * _k_block_bytes(job.arguments)


@device_function
def _k_block_bytes(arguments: GemmArguments) -> int:
    """Return the bytes of a block of the channels of a panel."""
    return arguments.weight.panel_bytes // arguments.k_blocks


@device_function
def _ask_outputs(micro: MicroKernel, job: Job, first: int, stop: int) -> None:
    """Prefetch the output lines of a tile for writing.

    A store to a line that is not in a cache waits for it, and few can wait at a time.
    """
    arguments, weight = job.arguments, job.arguments.weight
    half = arguments.half
    part, panel = job.panel // weight.panels, job.panel % weight.panels
    column = part * weight.outputs + PANEL * (panel - half if panel >= half else panel)
    for row in range(first, smaller(stop, first + micro.rows)):
        place = row_at(arguments.out, row) + 4 * column
        for line in range(4 * PANEL // CACHE_LINE):
            ask_to_write(place + line * CACHE_LINE)


@device_function
def _coming(job: Job, following: int, done: int, now: int, rows: int) -> Lines:
    """Return the share of the next panel to prefetch for these rows."""
    lines = 0 if following == 0 else _k_block_bytes(job.arguments) // CACHE_LINE
    first = lines * done // rows
    return following + first * CACHE_LINE, lines * smaller(rows, done + now) // rows - first


@device_function
def _large_tile(tiles: GemmTiles, job: Job, first: int, stop: int, coming: Lines) -> int:
    """Finish sums where they are, in registers.

    By way of memory 1,152 by 384 in int8 took 1.08 times as long (Zen 4, scales per row).
    """
    micro, ending = tiles.large, ending_of(job, first)
    if not ending.is_direct:
        return _tile(micro, tiles.activation, job, first, stop, coming)
    x, panel_at, sizes = _operands(micro, job, first)
    last = stop - 1 - first
    rows: Any = row_addresses(micro, x, job.arguments.x.stride, last)
    for block in range(0, PANEL // LANES, micro.blocks):
        sums = multiply(micro, panel_at, rows, block, sizes, coming)
        coming = (0, 0)
        outs: Any = row_addresses(micro, ending.out + block * BLOCK_BYTES, ending.stride, last)
        end_tile(micro, sums, ending, (0, last, block), outs)
    activate_rows(tiles.activation, job, ending, 0, smaller(micro.rows, stop - first))
    return micro.rows


@device_function
@always_inline
def _operands(micro: MicroKernel, job: Job, first: int) -> tuple[int, int, Sizes]:
    """Return where rows from `first` on lie, and a block of a panel, and the sizes of both."""
    arguments, weight = job.arguments, job.arguments.weight
    x = row_at(arguments.x, first) + job.panel // weight.panels * arguments.part_bytes
    x += job.k_block * (arguments.part_bytes // arguments.k_blocks)
    record_bytes = _k_block_bytes(arguments) // weight.records
    panel_at = job.weights + job.panel * weight.panel_bytes
    panel_at += job.k_block * _k_block_bytes(arguments)
    return x, panel_at, (weight.records, record_bytes, row_record_bytes(micro, record_bytes))


@device_function
def _tile(
    micro: MicroKernel, activation: Activation, job: Job, first: int, stop: int, coming: Lines
) -> int:
    """Multiply rows from `first` on by a block of a panel; return how many rows a tile has."""
    _fill(micro, job, first, stop, coming)
    for row in range(smaller(micro.rows, stop - first)):
        write_row(activation, job, first + row, job.tile + STEP_BYTES * row)
    return micro.rows


@device_function
def _fill(micro: MicroKernel, job: Job, first: int, stop: int, coming: Lines) -> None:
    """Write the sums of rows from `first` on by a block of a panel to the room for a tile."""
    x, panel_at, sizes = _operands(micro, job, first)
    rows = (x, job.arguments.x.stride, stop - 1 - first)
    fill_tile(micro, panel_at, rows, sizes, job.tile, coming)
