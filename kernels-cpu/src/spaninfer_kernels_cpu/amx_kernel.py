"""Products by tiles (AMX): up to 32 rows of activations by a panel of 64 outputs.

`products_kernel.fill_tile` chooses between this and vectors. A panel has the order of bytes that
tiles want: rows of a tile of weights are steps, 256 bytes apart.

Codes are multiplied a group and 32 outputs at a time, and the sums, int32, come through memory to
be scaled by vectors. That takes longer than the products, so it is done for one half of the outputs
while the products of the other half are under way.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba.extending import overload

from spaninfer_kernels_cpu import amx
from spaninfer_kernels_cpu.amx import LEFT, LOWER, RIGHT, SUMS, TILE_BYTES, TILE_ROWS, UPPER
from spaninfer_kernels_cpu.in_kernel import PART, in_kernel
from spaninfer_kernels_cpu.layout import (
    BLOCK_BYTES,
    PANEL,
    PARAMETER_BYTES,
    ROW_PARAMETER_BYTES,
    STEP_BYTES,
)
from spaninfer_kernels_cpu.memory import Room, stack
from spaninfer_kernels_cpu.pointer import floats_at, numbers_at
from spaninfer_kernels_cpu.recipe import Recipe
from spaninfer_kernels_cpu.tiles import add_scaled_row, load_parameters

ROWS: Final = 2 * TILE_ROWS  # `recipe.TILE_ROWS`
_C00, _C01, _C10, _C11 = SUMS
_PANEL_STEPS: Final = TILE_BYTES // 4
_HALF: Final = STEP_BYTES // 2  # of a step: 32 outputs
_CONFIG: Final = Room(TILE_BYTES)
_DOTS: Final = Room(2 * ROWS * _HALF)  # sums of products, one half of the outputs and the other
_WIDENED: Final = Room(_PANEL_STEPS * _HALF)

Sizes = tuple[int, int, int]


def fill(
    recipe: Recipe, weights: int, x: int, stride: int, last: int, sizes: Sizes, out: int
) -> None:
    """Write the products of rows 0 to `last` of x (32 at most) and a panel to out[32 64], float32.

    `sizes`: number of groups, bytes of one of the panel, bytes of one in a row.
    """
    raise NotImplementedError("exists in Numba functions only")


@overload(fill, jit_options=PART)
def _fill(
    recipe: Recipe,
    weights: int,  # noqa: ARG001
    x: int,  # noqa: ARG001
    stride: int,  # noqa: ARG001
    last: int,  # noqa: ARG001
    sizes: Sizes,  # noqa: ARG001
    out: int,  # noqa: ARG001
) -> Any:
    """Choose the code; Numba hands in types, but wants the signature repeated to the letter."""
    kind: Any = recipe
    return _fill_bf16 if kind.value.kind == "bfloat16" else _fill_codes


def _fill_bf16(
    recipe: Recipe,  # noqa: ARG001
    weights: int,
    x: int,
    stride: int,
    last: int,
    sizes: Sizes,
    out: int,
) -> None:
    count, (_, panel_bytes, row_bytes) = min(last + 1, ROWS), sizes
    chunk = _configure(count, panel_bytes // STEP_BYTES)
    for half in range(0, STEP_BYTES, _HALF):
        _zero(count)
        for start in range(0, row_bytes, chunk):
            _load(weights + start // 4 * STEP_BYTES + half, STEP_BYTES, x + start, stride, count)
            amx.add_bf16(_C00, UPPER, LEFT)
            amx.add_bf16(_C01, UPPER, RIGHT)
            if count > TILE_ROWS:
                amx.add_bf16(_C10, LOWER, LEFT)
                amx.add_bf16(_C11, LOWER, RIGHT)
        _store(out + half, STEP_BYTES, count)
    amx.release()


def _fill_codes(
    recipe: Recipe, weights: int, x: int, stride: int, last: int, sizes: Sizes, out: int
) -> None:
    count, (groups, group_bytes, row_group_bytes) = min(last + 1, ROWS), sizes
    chunk = _configure(count, row_group_bytes // 4)
    dots, widened = stack(_DOTS), stack(_WIDENED)
    parameters, row_ends = weights + group_bytes - PARAMETER_BYTES, x + groups * row_group_bytes
    floats_at(out, count * PANEL)[:] = np.float32(0)
    for number in range(2 * groups):
        group, half = number >> 1, (number & 1) * _HALF
        _zero(count)
        codes = weights + group * group_bytes + half
        for start in range(0, row_group_bytes, chunk):
            row = x + group * row_group_bytes + start
            if recipe.code_bits == 4:
                _widen(codes + start // 8 * STEP_BYTES, chunk // 8, widened)
                _load(widened, _HALF, row, stride, count)
            else:
                _load(codes + start // 4 * STEP_BYTES, STEP_BYTES, row, stride, count)
            _multiply_bytes(count)
        if number > 0:
            _scale(number - 1, parameters, group_bytes, row_ends, stride, dots, count, out)
        _store(dots + ROWS * half, _HALF, count)
    _scale(2 * groups - 1, parameters, group_bytes, row_ends, stride, dots, count, out)
    amx.release()


@in_kernel
def _configure(count: int, steps: int) -> int:
    """Set up tiles for so many rows; return how many bytes of a row one product takes.

    As many steps as a tile holds and `steps` is a multiple of: tiles keep one size throughout.
    """
    at_once = min(steps, _PANEL_STEPS)
    while steps % at_once:
        at_once -= 1
    lower = max(1, count - TILE_ROWS)
    amx.configure(stack(_CONFIG), min(count, TILE_ROWS), lower, 4 * at_once)
    return 4 * at_once


@in_kernel
def _load(weights: int, step: int, x: int, stride: int, count: int) -> None:
    """Read two tiles of weights, whose steps are so many bytes apart, and the tiles of rows."""
    amx.load(UPPER, x, stride)
    amx.load(LEFT, weights, step)
    amx.load(RIGHT, weights + BLOCK_BYTES, step)
    if count > TILE_ROWS:
        amx.load(LOWER, x + TILE_ROWS * stride, stride)


@in_kernel
def _zero(count: int) -> None:
    """Set the sums to zero."""
    amx.zero(_C00)
    amx.zero(_C01)
    if count > TILE_ROWS:
        amx.zero(_C10)
        amx.zero(_C11)


@in_kernel
def _store(out: int, stride: int, count: int) -> None:
    """Write the sums, 32 bits each."""
    amx.store(_C00, out, stride)
    amx.store(_C01, out + BLOCK_BYTES, stride)
    if count > TILE_ROWS:
        lower = out + TILE_ROWS * stride
        amx.store(_C10, lower, stride)
        amx.store(_C11, lower + BLOCK_BYTES, stride)


# ---- codes ---------------------------------------------------------------------------------------


@in_kernel
def _multiply_bytes(count: int) -> None:
    amx.add_bytes(_C00, UPPER, LEFT)
    amx.add_bytes(_C01, UPPER, RIGHT)
    if count > TILE_ROWS:
        amx.add_bytes(_C10, LOWER, LEFT)
        amx.add_bytes(_C11, LOWER, RIGHT)


@in_kernel
def _widen(codes: int, steps: int, widened: int) -> None:
    """Write the low halves of the bytes of 32 outputs as a step, then the high ones."""
    for step in range(steps):
        source = numbers_at(codes + step * STEP_BYTES, _HALF, np.uint8)
        low = numbers_at(widened + 2 * step * _HALF, _HALF, np.uint8)
        high = numbers_at(widened + (2 * step + 1) * _HALF, _HALF, np.uint8)
        for i in range(_HALF):
            low[i] = source[i] & np.uint8(15)
            high[i] = source[i] >> np.uint8(4)


@in_kernel
def _scale(
    number: int,
    parameters: int,
    group_bytes: int,
    row_ends: int,
    stride: int,
    dots: int,
    count: int,
    out: int,
) -> None:
    """Add what the codes of half `number` of the groups' outputs mean (see `tiles.add_scaled`)."""
    group, half = number >> 1, (number & 1) * _HALF
    w = load_parameters(parameters + group * group_bytes + half // 2)
    sums, of_row = dots + ROWS * half, row_ends + group * ROW_PARAMETER_BYTES
    for n in range(count):
        add_scaled_row(w, sums + n * _HALF, of_row + n * stride, out + half + n * STEP_BYTES)
