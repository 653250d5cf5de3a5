"""What a task of a product does, for `product_call`, which says what the words are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.activation_kernel import Activation, activated
from spaninfer_kernels_cpu.call import real, word
from spaninfer_kernels_cpu.elements import read_index, smaller
from spaninfer_kernels_cpu.in_kernel import in_kernel
from spaninfer_kernels_cpu.kernel import Kernel, variants
from spaninfer_kernels_cpu.layout import PANEL
from spaninfer_kernels_cpu.memory import CACHE_LINE, Room, stack
from spaninfer_kernels_cpu.pointer import floats_at
from spaninfer_kernels_cpu.prefetch import ask_to_read, ask_to_write
from spaninfer_kernels_cpu.products_kernel import ROWS_PER_TASK, fill_tile, row_group_bytes
from spaninfer_kernels_cpu.recipe import Recipe

Floats = NDArray[np.float32]

RUN_NUMBERS = 3  # int32 of a run: the weight's number, its first row, the row behind its last


@variants
def product_kernel(
    one: Recipe, few: Recipe, some: Recipe, many: Recipe, activation: Activation
) -> Kernel:
    """Return the kernel that multiplies by these recipes.

    A task: a piece of the panels by an equal part of the rows, up to 192, or by the rows of a run.
    Of gated products a piece is of gates and of the factors with the same numbers: for few rows all
    gates first, so that memory is read in two long streams, else panel by panel. Where tiles of
    many rows compute, the panel that is next and their outputs are on the way meanwhile.
    """
    tile_room = Room(4 * PANEL * max(some.rows, many.rows))

    def product(words: int, rows: int, task: int) -> None:
        runs, pieces, num_pieces = word(words, 13), word(words, 15), word(words, 16)
        weights = word(words, 0)
        if runs == 0:
            blocks = (rows + ROWS_PER_TASK - 1) // ROWS_PER_TASK
            piece = task // blocks
            part = (rows + blocks * many.rows - 1) // (blocks * many.rows) * many.rows
            first = smaller(rows, task % blocks * part)
            stop = smaller(rows, first + part)
        else:
            run, piece = task // num_pieces * RUN_NUMBERS, task % num_pieces
            weights += read_index(runs, run) * word(words, 3) * word(words, 1)
            first, stop = read_index(runs, run + 1), read_index(runs, run + 2)
        tile, half = stack(tile_room), word(words, 17)
        # Up to twice as many rows as the tile of few has are done by a tile of so many, or by two
        # of few unless one of the largest does them.
        least = few.rows if some.rows > few.rows else many.rows
        begin, end = word(pieces, piece), word(pieces, piece + 1)
        at_once = 1 if half != 0 and rows > some.rows else end - begin
        while begin < end:
            for turn in range(2 * at_once if half != 0 else at_once):
                panel = begin + turn if turn < at_once else begin + turn - at_once + half
                following = _following(words, panel, end)
                start = first
                while start < stop:
                    left = stop - start
                    if left == 1:
                        start += _tile(one, activation, words, weights, panel, start, stop, tile)
                    elif left <= few.rows:
                        start += _tile(few, activation, words, weights, panel, start, stop, tile)
                    elif least < left <= 2 * few.rows:
                        start += _tile(some, activation, words, weights, panel, start, stop, tile)
                    else:
                        _ask_outputs(many, words, panel, start, stop)
                        _ask_panel(
                            words, weights, following, start - first, many.rows, stop - first
                        )
                        start += _tile(many, activation, words, weights, panel, start, stop, tile)
            begin += at_once

    return product


@in_kernel
def _following(words: int, panel: int, end: int) -> int:
    """Return the number of the panel that this thread multiplies next, -1 if there may be none.

    Behind a piece it is a guess: the last pieces are of a panel each, which threads take in turns.
    """
    half: int = word(words, 17)
    if half != 0 and panel < half:
        return panel + half
    following = panel + 1 - half
    if following == end:
        following += word(words, 18) - 1
    count: int = word(word(words, 15), word(words, 16))  # where the last piece ends
    return following if following < count else -1


@in_kernel
def _ask_outputs(recipe: Recipe, words: int, number: int, first: int, stop: int) -> None:
    """Have the lines of memory on the way that a tile's outputs are written to.

    A store to a line that is not in a cache waits for it, and few can wait at a time.
    """
    half = word(words, 17)
    part, panel = number // word(words, 3), number % word(words, 3)
    column = part * word(words, 4) + PANEL * (panel - half if panel >= half else panel)
    for row in range(first, smaller(stop, first + recipe.rows)):
        place = word(words, 8) + row * word(words, 9) + 4 * column
        for line in range(4 * PANEL // CACHE_LINE):
            ask_to_write(place + line * CACHE_LINE)


@in_kernel
def _ask_panel(words: int, weights: int, panel: int, done: int, now: int, rows: int) -> None:
    """Have as much of a panel on the way to the second cache as there are rows done now, of all."""
    if panel >= 0:
        place, lines = weights + panel * word(words, 1), word(words, 1) // CACHE_LINE
        for line in range(lines * done // rows, lines * smaller(rows, done + now) // rows):
            ask_to_read(place + line * CACHE_LINE)


@in_kernel
def _tile(
    recipe: Recipe,
    activation: Activation,
    words: int,
    weights: int,
    number: int,
    first: int,
    stop: int,
    tile: int,
) -> int:
    """Multiply rows from `first` on by the panel of this number, of all parts' panels; return how
    many rows a tile has.
    """
    part, panel = number // word(words, 3), number % word(words, 3)
    groups, stride = word(words, 2), word(words, 6)
    x = word(words, 5) + first * stride + part * word(words, 7)
    group_bytes = word(words, 1) // groups
    sizes = (groups, group_bytes, row_group_bytes(recipe, group_bytes))
    panel_at = weights + number * word(words, 1)
    fill_tile(recipe, panel_at, x, stride, stop - 1 - first, sizes, tile)
    half = word(words, 17)
    for row in range(smaller(recipe.rows, stop - first)):
        sums = floats_at(tile + 4 * PANEL * row, PANEL)
        if half == 0:
            _finish(words, first + row, part, panel, sums)
        else:
            place = word(words, 8) + (first + row) * word(words, 9)
            _gate(activation, place, panel, half, sums)
    return recipe.rows


@in_kernel
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


@in_kernel
def _finish(words: int, row: int, part: int, panel: int, sums: Floats) -> None:
    """Write a panel's outputs of one row; `sums` is used up."""
    first, outputs = panel * PANEL, word(words, 4)
    width = smaller(PANEL, outputs - first)
    place = word(words, 8) + row * word(words, 9) + 4 * (part * outputs + first)
    out = floats_at(place, width)
    if word(words, 10) != 0:
        bias = floats_at(word(words, 10) + 4 * first, width)
        for i in range(width):
            sums[i] += bias[i]
    if word(words, 11) == 0:
        for i in range(width):
            out[i] = sums[i]
    else:
        residual = floats_at(word(words, 11) + row * word(words, 12) + 4 * first, width)
        scale = real(words, 14)
        for i in range(width):
            out[i] = residual[i] + scale * sums[i]
