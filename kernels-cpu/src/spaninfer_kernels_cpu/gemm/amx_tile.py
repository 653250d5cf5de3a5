"""Tiles of AMX for GEMMs: set up, filled and multiplied, 32 rows by 32 outputs or 16 by 64.

A panel has the order of bytes that tiles want: rows of a tile of weights are steps, 256 bytes
apart. A line, 16 by 64, reads a panel of bfloat16 from front to back as memory wants; more rows are
squares of 32 by 32 (`amx_panel`), which multiply four times for four loads and add in the same
order. Activations that are float32 are two bfloat16 each (`prepare_activations`), both multiplied
by weights that are loaded once.
"""

from __future__ import annotations

from typing import Final

from spaninfer_kernels_cpu.codegen import amx
from spaninfer_kernels_cpu.codegen.amx import (
    LEFT,
    LOWER,
    RIGHT,
    SUMS,
    TILE_BYTES,
    TILE_ROWS,
    UPPER,
    Tile,
)
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.memory import CACHE_LINE, StackBytes, stack
from spaninfer_kernels_cpu.codegen.prefetch import ask_to_read
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, STEP_BYTES

C00, C01, C10, C11 = SUMS
_PANEL_STEPS: Final = TILE_BYTES // 4
_CONFIG: Final = StackBytes(TILE_BYTES)

Strided = tuple[int, int, int]
"""Address of the first row, bytes from one to the next, number of the last, counted from 0."""

Sizes = tuple[int, int, int]
"""Number of groups, bytes of one of a panel, bytes of one in a row."""


@device_function
def fill_line(micro: MicroKernel, weights: int, rows: Strided, sizes: Sizes, out: int) -> None:
    """Write the products of a panel of numbers and of up to 16 rows to out: as `fill_tile`."""
    (x, stride, last), (_, panel_bytes, row_bytes) = rows, sizes
    count = min(last + 1, TILE_ROWS)
    part_bytes = row_bytes // micro.parts
    chunk = chunk_of(panel_bytes // STEP_BYTES)
    configure(micro, count, chunk)  # sums are zero now
    for start in range(0, part_bytes, chunk):
        amx.load(UPPER, x + start, stride)
        if micro.parts > 1:
            amx.load(LOWER, x + part_bytes + start, stride)
        step, lines = weights + start // 4 * STEP_BYTES, chunk // 4
        _add_block(micro, 0, C00, LEFT, step, lines)
        _add_block(micro, 1, C01, RIGHT, step, lines)
        _add_block(micro, 2, C10, LEFT, step, lines)
        _add_block(micro, 3, C11, RIGHT, step, lines)
    amx.store(C00, out, STEP_BYTES)
    amx.store(C01, out + BLOCK_BYTES, STEP_BYTES)
    amx.store(C10, out + 2 * BLOCK_BYTES, STEP_BYTES)
    amx.store(C11, out + 3 * BLOCK_BYTES, STEP_BYTES)


@device_function
def _add_block(
    micro: MicroKernel, block: int, sums: Tile, columns: Tile, weights: int, lines: int
) -> None:
    """Add the products of all parts of the rows with a block of weights, which is read here.

    So many later lines are prefetched: some in front of every product, since products wait where
    many are requested at once, and memory idles where none are.
    """
    for line in range(block * lines, (block + 1) * lines):
        ask_to_read(weights + micro.ahead + line * CACHE_LINE)
    amx.load(columns, weights + block * BLOCK_BYTES, STEP_BYTES)
    amx.add_bf16(sums, UPPER, columns)
    if micro.parts > 1:
        amx.add_bf16(sums, LOWER, columns)


@device_function
def chunk_of(steps: int) -> int:
    """Return how many bytes of a row one product takes: as many steps as a tile holds and `steps`
    is a multiple of, so that tiles keep one size throughout.
    """
    at_once = min(steps, _PANEL_STEPS)
    while steps % at_once:
        at_once -= 1
    return 4 * at_once


@device_function
def configure(micro: MicroKernel, count: int, chunk: int) -> None:
    """Set up tiles for that many rows, `chunk` bytes of which a product takes.

    The lower rows of a line are the second parts of the upper ones.
    """
    upper = min(count, TILE_ROWS)
    lower = upper if micro.rows == TILE_ROWS else max(1, count - TILE_ROWS)
    amx.configure(stack(_CONFIG), upper, lower, chunk)


@device_function
def add(micro: MicroKernel, sums: Tile, left: Tile, right: Tile) -> None:
    """Add the products of a tile of rows and one of weights."""
    if micro.is_quantised and not micro.expands:
        amx.add_bytes(sums, left, right)
    else:
        amx.add_bf16(sums, left, right)


@device_function
def repeat(micro: MicroKernel, steps: int, space: int, out: int) -> None:
    """Add the products of two by two tiles that many times, all from and in registers.

    At `space` are two tiles, at `out` room for one.
    """
    amx.configure(stack(_CONFIG), TILE_ROWS, TILE_ROWS, TILE_BYTES)
    amx.load(LEFT, space, TILE_BYTES)
    amx.load(RIGHT, space + BLOCK_BYTES, TILE_BYTES)
    amx.load(UPPER, space, TILE_BYTES)
    amx.load(LOWER, space + TILE_ROWS * TILE_BYTES, TILE_BYTES)
    for _ in range(steps):
        add(micro, C00, UPPER, LEFT)
        add(micro, C01, UPPER, RIGHT)
        add(micro, C10, LOWER, LEFT)
        add(micro, C11, LOWER, RIGHT)
    amx.store(C11, out, TILE_BYTES)
    amx.release()
