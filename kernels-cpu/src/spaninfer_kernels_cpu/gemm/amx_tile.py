"""GEMM by AMX tiles: rows of activations by a panel of 64 outputs.

`tile_gemm.fill_tile` chooses between this and vectors. A panel has the order of bytes that
tiles want: rows of a tile of weights are steps, 256 bytes apart.

bfloat16 has two shapes, whose sums are added in the same order. Up to 16 rows are a line, 16 by 64,
that reads a panel from front to back as memory wants; more are squares of 32 by 32, which multiply
four times for four loads. Activations that are float32 are two bfloat16 each
(`prepare_activations`), both multiplied by weights that are loaded once.

Codes are expanded to bfloat16 (`expanded_panel`), or multiplied a group and 32 outputs at a time.
Then the sums, int32, come through memory to be scaled by vectors. That takes longer than the
products, so it is done for one half of the outputs while the products of the other half are under
way.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

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
from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.memory import CACHE_LINE, StackBytes, stack
from spaninfer_kernels_cpu.codegen.prefetch import Lines, ask_for_share, ask_to_read, share_of
from spaninfer_kernels_cpu.codegen.specialization import specialized
from spaninfer_kernels_cpu.gemm.code_scales import add_scaled_row, load_parameters
from spaninfer_kernels_cpu.gemm.micro_kernel import SQUARE_ROWS, MicroKernel
from spaninfer_kernels_cpu.quantisation.layout import (
    BLOCK_BYTES,
    PANEL,
    PARAMETER_BYTES,
    ROW_PARAMETER_BYTES,
    STEP_BYTES,
)

_C00, _C01, _C10, _C11 = SUMS
_PANEL_STEPS: Final = TILE_BYTES // 4
HALF_STEP: Final = STEP_BYTES // 2  # 32 outputs
_CONFIG: Final = StackBytes(TILE_BYTES)
_DOTS: Final = StackBytes(2 * SQUARE_ROWS * HALF_STEP)  # sums of both halves of the outputs
_WIDENED: Final = StackBytes(_PANEL_STEPS * HALF_STEP)

Strided = tuple[int, int, int]
"""Address of the first row, bytes from one to the next, number of the last, counted from 0."""

Sizes = tuple[int, int, int]
"""Number of groups, bytes of one of a panel, bytes of one in a row."""


Parameters = tuple[int, int]
"""Address of the first group's, or row's, scales and what belongs to them; bytes to the next."""


def _choose_fill(micro: MicroKernel) -> Any:
    if micro.is_quantised:
        return _fill_quantised
    return _fill_square if micro.rows == SQUARE_ROWS else _fill_line


@specialized(_choose_fill)
def fill(
    micro: MicroKernel, weights: int, rows: Strided, sizes: Sizes, out: int, coming: Lines
) -> None:
    """Write the products of a panel and of rows to out: see `tile_gemm.fill_tile`."""
    raise NotImplementedError("exists in Numba functions only")


def _fill_square(
    micro: MicroKernel, weights: int, rows: Strided, sizes: Sizes, out: int, coming: Lines
) -> None:
    (x, stride, last), (_, panel_bytes, row_bytes) = rows, sizes
    count = min(last + 1, SQUARE_ROWS)
    part_bytes = row_bytes // micro.parts
    chunk = configure(micro, count, panel_bytes // STEP_BYTES)
    chunks = part_bytes // chunk
    at_once = share_of(coming, 2 * chunks)
    for half in range(2):
        zero_sums(count)
        for number in range(chunks):
            ask_for_share(coming, half * chunks + number, at_once)
            start = number * chunk
            load_weights(weights + start // 4 * STEP_BYTES + half * HALF_STEP, STEP_BYTES)
            for part in range(micro.parts):
                load_rows(x + part * part_bytes + start, stride, count)
                multiply(micro, count)
        store_sums(out + half * HALF_STEP, STEP_BYTES, count)


def _fill_line(
    micro: MicroKernel,
    weights: int,
    rows: Strided,
    sizes: Sizes,
    out: int,
    coming: Lines,  # noqa: ARG001
) -> None:
    (x, stride, last), (_, panel_bytes, row_bytes) = rows, sizes
    count = min(last + 1, TILE_ROWS)
    part_bytes = row_bytes // micro.parts
    chunk = configure(micro, count, panel_bytes // STEP_BYTES)  # sums are zero now
    for start in range(0, part_bytes, chunk):
        amx.load(UPPER, x + start, stride)
        if micro.parts > 1:
            amx.load(LOWER, x + part_bytes + start, stride)
        step, lines = weights + start // 4 * STEP_BYTES, chunk // 4
        _add_block(micro, 0, _C00, LEFT, step, lines)
        _add_block(micro, 1, _C01, RIGHT, step, lines)
        _add_block(micro, 2, _C10, LEFT, step, lines)
        _add_block(micro, 3, _C11, RIGHT, step, lines)
    amx.store(_C00, out, STEP_BYTES)
    amx.store(_C01, out + BLOCK_BYTES, STEP_BYTES)
    amx.store(_C10, out + 2 * BLOCK_BYTES, STEP_BYTES)
    amx.store(_C11, out + 3 * BLOCK_BYTES, STEP_BYTES)


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


def _fill_quantised(
    micro: MicroKernel, weights: int, rows: Strided, sizes: Sizes, out: int, coming: Lines
) -> None:
    ask_for_share(coming, 0, coming[1])
    (x, stride, last), (groups, group_bytes, row_group_bytes) = rows, sizes
    count = min(last + 1, SQUARE_ROWS)
    chunk = configure(micro, count, row_group_bytes // 4)
    dots, widened = stack(_DOTS), stack(_WIDENED)
    of_weights = (weights + group_bytes - PARAMETER_BYTES, group_bytes)
    of_rows = (x + groups * row_group_bytes, stride)
    floats_at(out, count * PANEL)[:] = np.float32(0)
    for number in range(2 * groups):
        group, half = number >> 1, (number & 1) * HALF_STEP
        zero_sums(count)
        codes = weights + group * group_bytes + half
        for start in range(0, row_group_bytes, chunk):
            row = x + group * row_group_bytes + start
            if micro.code_bits == 4:
                _widen(codes + start // 8 * STEP_BYTES, chunk // 8, widened)
                load_weights(widened, HALF_STEP)
            else:
                load_weights(codes + start // 4 * STEP_BYTES, STEP_BYTES)
            load_rows(row, stride, count)
            multiply(micro, count)
        if number > 0:
            _scale(number - 1, of_weights, of_rows, count, dots, out)
        store_sums(dots + SQUARE_ROWS * half, HALF_STEP, count)
    _scale(2 * groups - 1, of_weights, of_rows, count, dots, out)


@device_function
def configure(micro: MicroKernel, count: int, steps: int) -> int:
    """Set up tiles for that many rows; return how many bytes of a row one product takes.

    As many steps as a tile holds and `steps` is a multiple of: tiles keep one size throughout. The
    lower rows of a line are the second parts of the upper ones.
    """
    at_once = min(steps, _PANEL_STEPS)
    while steps % at_once:
        at_once -= 1
    upper = min(count, TILE_ROWS)
    lower = upper if micro.rows == TILE_ROWS else max(1, count - TILE_ROWS)
    amx.configure(stack(_CONFIG), upper, lower, 4 * at_once)
    return 4 * at_once


@device_function
def load_weights(weights: int, step: int) -> None:
    """Read two tiles of weights, whose steps are that many bytes apart."""
    amx.load(LEFT, weights, step)
    amx.load(RIGHT, weights + BLOCK_BYTES, step)


@device_function
def load_rows(x: int, stride: int, count: int) -> None:
    """Read the tiles of rows."""
    amx.load(UPPER, x, stride)
    if count > TILE_ROWS:
        amx.load(LOWER, x + TILE_ROWS * stride, stride)


@device_function
def multiply(micro: MicroKernel, count: int) -> None:
    """Add the products of the tiles of rows and of weights."""
    _add(micro, _C00, UPPER, LEFT)
    _add(micro, _C01, UPPER, RIGHT)
    if count > TILE_ROWS:
        _add(micro, _C10, LOWER, LEFT)
        _add(micro, _C11, LOWER, RIGHT)


@device_function
def _add(micro: MicroKernel, sums: Tile, left: Tile, right: Tile) -> None:
    if micro.is_quantised and not micro.expands:
        amx.add_bytes(sums, left, right)
    else:
        amx.add_bf16(sums, left, right)


@device_function
def zero_sums(count: int) -> None:
    """Set the sums to zero."""
    amx.zero(_C00)
    amx.zero(_C01)
    if count > TILE_ROWS:
        amx.zero(_C10)
        amx.zero(_C11)


@device_function
def load_sums(source: int, stride: int, count: int) -> None:
    """Read what `store_sums` wrote."""
    amx.load(_C00, source, stride)
    amx.load(_C01, source + BLOCK_BYTES, stride)
    if count > TILE_ROWS:
        lower = source + TILE_ROWS * stride
        amx.load(_C10, lower, stride)
        amx.load(_C11, lower + BLOCK_BYTES, stride)


@device_function
def store_sums(out: int, stride: int, count: int) -> None:
    """Write the sums, 32 bits each."""
    amx.store(_C00, out, stride)
    amx.store(_C01, out + BLOCK_BYTES, stride)
    if count > TILE_ROWS:
        lower = out + TILE_ROWS * stride
        amx.store(_C10, lower, stride)
        amx.store(_C11, lower + BLOCK_BYTES, stride)


@device_function
def repeat(micro: MicroKernel, steps: int, space: int, out: int) -> None:
    """Add the products of two by two tiles that many times, all from and in registers.

    At `space` are two tiles, at `out` room for one.
    """
    amx.configure(stack(_CONFIG), TILE_ROWS, TILE_ROWS, TILE_BYTES)
    load_weights(space, TILE_BYTES)
    load_rows(space, TILE_BYTES, SQUARE_ROWS)
    for _ in range(steps):
        multiply(micro, SQUARE_ROWS)
    amx.store(_C11, out, TILE_BYTES)
    amx.release()


# ---- codes ---------------------------------------------------------------------------------------


@device_function
def _widen(codes: int, steps: int, widened: int) -> None:
    """Write the low halves of the bytes of 32 outputs as a step, then the high ones."""
    for step in range(steps):
        source = numbers_at(codes + step * STEP_BYTES, HALF_STEP, np.uint8)
        low = numbers_at(widened + 2 * step * HALF_STEP, HALF_STEP, np.uint8)
        high = numbers_at(widened + (2 * step + 1) * HALF_STEP, HALF_STEP, np.uint8)
        for i in range(HALF_STEP):
            low[i] = source[i] & np.uint8(15)
            high[i] = source[i] >> np.uint8(4)


@device_function
def _scale(
    number: int, weights: Parameters, rows: Parameters, count: int, dots: int, out: int
) -> None:
    """Add what half `number` of the groups' outputs stands for (see `register_tile.add_scaled`)."""
    group, half = number >> 1, (number & 1) * HALF_STEP
    (parameters, group_bytes), (row_ends, stride) = weights, rows
    w = load_parameters(parameters + group * group_bytes + half // 2)
    sums, of_row = dots + SQUARE_ROWS * half, row_ends + group * ROW_PARAMETER_BYTES
    for n in range(count):
        add_scaled_row(w, sums + n * HALF_STEP, of_row + n * stride, out + half + n * STEP_BYTES)
