"""What a task of a product does, for `product_call`, which says what the words are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.array_view import floats_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import read_index, smaller
from spaninfer_kernels_cpu.codegen.kernel import Kernel, variants
from spaninfer_kernels_cpu.codegen.memory import CACHE_LINE, Room, stack
from spaninfer_kernels_cpu.codegen.prefetch import Lines, ask_to_write
from spaninfer_kernels_cpu.elementwise.activations import Activation, activated
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.gemm.tile_gemm import end_tiles, fill_tile, row_group_bytes
from spaninfer_kernels_cpu.quantisation.layout import PANEL
from spaninfer_kernels_cpu.runtime.call import real, word

Floats = NDArray[np.float32]
Job = tuple[int, int, int, int, int]
"""Words, the address of the weights, that of room for a tile, number of a panel and a stretch."""

SEGMENT_NUMBERS = 3  # int32 of a run: the weight's number, its first row, the row behind its last


@variants
def gemm_kernel(
    one: MicroKernel, few: MicroKernel, some: MicroKernel, many: MicroKernel, activation: Activation
) -> Kernel:
    """Return the kernel that multiplies by these recipes.

    A task: a piece of the panels by an equal part of the rows, up to as many as a word says, or by
    the rows of a run. Of gated products a piece is of gates and of the factors with the same
    numbers: for few rows all gates first, so that memory is read in two long streams, else panel by
    panel. Many rows take the first stretch of the channels with all panels of the piece, then the
    next; few take all of a panel, as it lies in memory. Where tiles of many rows compute, the panel
    that is next and their outputs are on the way meanwhile.
    """
    tile_room = Room(4 * PANEL * max(some.rows, many.rows))

    def product(words: int, rows: int, task: int) -> None:
        runs, pieces, num_pieces = word(words, 13), word(words, 15), word(words, 16)
        weights, most = word(words, 0), word(words, 20)
        if runs == 0:
            blocks = (rows + most - 1) // most
            piece = task // blocks
            part = (rows + blocks * many.rows - 1) // (blocks * many.rows) * many.rows
            first = smaller(rows, task % blocks * part)
            stop = smaller(rows, first + part)
        else:
            run, piece = task // num_pieces * SEGMENT_NUMBERS, task % num_pieces
            weights += read_index(runs, run) * word(words, 3) * word(words, 1)
            first, stop = read_index(runs, run + 1), read_index(runs, run + 2)
        tile, half = stack(tile_room), word(words, 17)
        k_blocks = word(words, 19)
        together = 1 if rows > some.rows else k_blocks
        for k_block in range(0, k_blocks, together):
            begin, end = word(pieces, piece), word(pieces, piece + 1)
            at_once = 1 if half != 0 and rows > some.rows else end - begin
            while begin < end:
                for turn in range(2 * at_once if half != 0 else at_once):
                    panel = begin + turn if turn < at_once else begin + turn - at_once + half
                    for number in range(k_block, k_block + together):
                        job = (words, weights, tile, panel, number)
                        _multiply_rows(one, few, some, many, activation, job, end, first, stop)
                begin += at_once
        end_tiles(many)

    return product


@device_function
def _multiply_rows(
    one: MicroKernel,
    few: MicroKernel,
    some: MicroKernel,
    many: MicroKernel,
    activation: Activation,
    job: Job,
    end: int,
    first: int,
    stop: int,
) -> None:
    """Multiply rows from `first` to `stop` by a stretch of a panel, of a piece up to `end`."""
    # Up to twice as many rows as the tile of few has are done by a tile of so many, or by two of
    # few unless one of the largest does them.
    least = few.rows if some.rows > few.rows else many.rows
    following = _following(job, end)
    start = first
    while start < stop:
        left = stop - start
        if left == 1:
            start += _tile(one, activation, job, start, stop, (0, 0))
        elif left <= few.rows:
            start += _tile(few, activation, job, start, stop, (0, 0))
        elif least < left <= 2 * few.rows:
            start += _tile(some, activation, job, start, stop, (0, 0))
        else:
            _ask_outputs(many, job, start, stop)
            coming = _coming(job, following, start - first, many.rows, stop - first)
            start += _tile(many, activation, job, start, stop, coming)


@device_function
def _following(job: Job, end: int) -> int:
    """Return the address of what this thread multiplies next, 0 if there may be nothing.

    Behind a piece it is a guess: the last pieces are of a panel each, which threads take in turns.
    """
    words, weights, _, panel, k_block = job
    half = word(words, 17)
    if half != 0 and panel < half:
        following = panel + half
    else:
        following = panel + 1 - half
        if following == end:
            following += word(words, 18) - 1
        if following >= word(word(words, 15), word(words, 16)):  # where the last piece ends
            return 0
    place: int = weights + following * word(words, 1) + k_block * _k_block_bytes(words)
    return place


@device_function
def _k_block_bytes(words: int) -> int:
    """Return the bytes of a stretch of a panel."""
    num_bytes: int = word(words, 1) // word(words, 19)
    return num_bytes


@device_function
def _ask_outputs(micro: MicroKernel, job: Job, first: int, stop: int) -> None:
    """Have the lines of memory on the way that a tile's outputs are written to.

    A store to a line that is not in a cache waits for it, and few can wait at a time.
    """
    words, _, _, number, _ = job
    half = word(words, 17)
    part, panel = number // word(words, 3), number % word(words, 3)
    column = part * word(words, 4) + PANEL * (panel - half if panel >= half else panel)
    for row in range(first, smaller(stop, first + micro.rows)):
        place = word(words, 8) + row * word(words, 9) + 4 * column
        for line in range(4 * PANEL // CACHE_LINE):
            ask_to_write(place + line * CACHE_LINE)


@device_function
def _coming(job: Job, following: int, done: int, now: int, rows: int) -> Lines:
    """Return as large a part of what follows as there are rows done now, of all."""
    lines = 0 if following == 0 else _k_block_bytes(job[0]) // CACHE_LINE
    first = lines * done // rows
    return following + first * CACHE_LINE, lines * smaller(rows, done + now) // rows - first


@device_function
def _tile(
    micro: MicroKernel,
    activation: Activation,
    job: Job,
    first: int,
    stop: int,
    coming: Lines,
) -> int:
    """Multiply rows from `first` on by a stretch of a panel; return how many rows a tile has."""
    words, weights, tile, number, k_block = job
    part, panel = number // word(words, 3), number % word(words, 3)
    groups, stride, k_blocks = word(words, 2), word(words, 6), word(words, 19)
    x = word(words, 5) + first * stride + part * word(words, 7)
    x += k_block * (word(words, 7) // k_blocks)
    group_bytes = _k_block_bytes(words) // groups
    sizes = (groups, group_bytes, row_group_bytes(micro, group_bytes))
    panel_at = weights + number * word(words, 1) + k_block * _k_block_bytes(words)
    fill_tile(micro, panel_at, (x, stride, stop - 1 - first), sizes, tile, coming)
    half = word(words, 17)
    for row in range(smaller(micro.rows, stop - first)):
        sums = floats_at(tile + 4 * PANEL * row, PANEL)
        if half == 0:
            _finish(words, first + row, part, panel, k_block, sums)
        else:
            place = word(words, 8) + (first + row) * word(words, 9)
            _gate(activation, place, panel, half, sums)
    return micro.rows


@device_function
def _gate(activation: Activation, row: int, panel: int, half: int, sums: Floats) -> None:
    """Write the gates of a panel to a row, or the activation of those times a panel's factors."""
    if panel < half:
        out = floats_at(row + 4 * PANEL * panel, PANEL)
        for i in range(PANEL):
            out[i] = sums[i]
    else:
        out = floats_at(row + 4 * PANEL * (panel - half), PANEL)
        for i in range(PANEL):
            out[i] = activated(activation, out[i]) * sums[i]


@device_function
def _finish(words: int, row: int, part: int, panel: int, k_block: int, sums: Floats) -> None:
    """Write a panel's outputs of one row, or add a later stretch to them; `sums` is used up."""
    first, outputs = panel * PANEL, word(words, 4)
    width = smaller(PANEL, outputs - first)
    place = word(words, 8) + row * word(words, 9) + 4 * (part * outputs + first)
    out = floats_at(place, width)
    if word(words, 10) != 0 and k_block == 0:
        bias = floats_at(word(words, 10) + 4 * first, width)
        for i in range(width):
            sums[i] += bias[i]
    before = place if k_block > 0 else word(words, 11)
    if before == 0:
        for i in range(width):
            out[i] = sums[i]
    else:
        if k_block == 0:
            before += row * word(words, 12) + 4 * first
        residual = floats_at(before, width)
        scale = real(words, 14)
        for i in range(width):
            out[i] = residual[i] + scale * sums[i]
