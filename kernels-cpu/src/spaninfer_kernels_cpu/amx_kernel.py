"""Products by tiles (AMX): up to 32 rows of activations by a panel of 64 outputs.

`products_kernel.fill_tile` chooses between this and vectors. A panel has the order of bytes that
tiles want: rows of a tile of weights are steps, 256 bytes apart.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from spaninfer_kernels_cpu import amx
from spaninfer_kernels_cpu.amx import LEFT, LOWER, RIGHT, SUMS, TILE_BYTES, TILE_ROWS, UPPER
from spaninfer_kernels_cpu.elements import BFLOAT16, read
from spaninfer_kernels_cpu.in_kernel import in_kernel
from spaninfer_kernels_cpu.layout import (
    BLOCK_BYTES,
    CENTRE,
    PANEL,
    PARAMETER_BYTES,
    ROW_PARAMETER_BYTES,
    STEP_BYTES,
)
from spaninfer_kernels_cpu.pointer import floats_at, numbers_at
from spaninfer_kernels_cpu.recipe import Recipe
from spaninfer_kernels_cpu.rounding import fused

ROWS: Final = 2 * TILE_ROWS  # `recipe.TILE_ROWS`
_C00, _C01, _C10, _C11 = SUMS
_PANEL_STEPS: Final = TILE_BYTES // 4

Sizes = tuple[int, int, int]


def fill(
    recipe: Recipe, weights: int, x: int, stride: int, last: int, sizes: Sizes, out: int
) -> None:
    """Write the products of rows 0 to `last` of x (32 at most) and a panel to out[32 64], float32.

    `sizes`: number of groups, bytes of one of the panel, bytes of one of a row.
    """
    raise NotImplementedError("exists in Numba functions only")


@overload(fill)
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
    return {"bfloat16": _fill_bf16, "int8": _fill_int8, "int4": _fill_int4}[kind.value.kind]


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
    for block in range(0, STEP_BYTES, 2 * BLOCK_BYTES):
        for start in range(0, row_bytes, chunk):
            _load(weights + start // 4 * STEP_BYTES + block, x + start, stride, count)
            amx.add_bf16(_C00, UPPER, LEFT)
            amx.add_bf16(_C01, UPPER, RIGHT)
            if count > TILE_ROWS:
                amx.add_bf16(_C10, LOWER, LEFT)
                amx.add_bf16(_C11, LOWER, RIGHT)
        _store(out + block, count)
    amx.release()


def _fill_int8(
    recipe: Recipe,  # noqa: ARG001
    weights: int,
    x: int,
    stride: int,
    last: int,
    sizes: Sizes,
    out: int,
) -> None:
    count, (groups, group_bytes, row_group_bytes) = min(last + 1, ROWS), sizes
    code_bytes = group_bytes - PARAMETER_BYTES
    chunk = _configure(count, code_bytes // STEP_BYTES)
    dots = np.empty((ROWS, PANEL), np.int32)
    for group in range(groups):
        codes, row = weights + group * group_bytes, x + group * row_group_bytes
        _multiply_bytes(codes, code_bytes // STEP_BYTES, row, stride, count, chunk, dots)
        row_end = row + row_group_bytes - ROW_PARAMETER_BYTES
        _add_scaled(dots, CENTRE_INT8, codes + code_bytes, row_end, stride, count, group, out)
    amx.release()


def _fill_int4(
    recipe: Recipe,  # noqa: ARG001
    weights: int,
    x: int,
    stride: int,
    last: int,
    sizes: Sizes,
    out: int,
) -> None:
    count, (groups, group_bytes, row_group_bytes) = min(last + 1, ROWS), sizes
    code_bytes = group_bytes - PARAMETER_BYTES
    chunk = _configure(count, 2 * code_bytes // STEP_BYTES)
    dots = np.empty((ROWS, PANEL), np.int32)
    widened = np.empty(2 * code_bytes, np.uint8)
    for group in range(groups):
        codes, row = weights + group * group_bytes, x + group * row_group_bytes
        _widen(numbers_at(codes, code_bytes, np.uint8), widened)
        steps = 2 * code_bytes // STEP_BYTES
        _multiply_bytes(widened.ctypes.data, steps, row, stride, count, chunk, dots)
        row_end = row + row_group_bytes - ROW_PARAMETER_BYTES
        _add_scaled(dots, CENTRE_INT4, codes + code_bytes, row_end, stride, count, group, out)
    amx.release()


CENTRE_INT8: Final = np.int32(CENTRE["int8"])
CENTRE_INT4: Final = np.int32(CENTRE["int4"])


@in_kernel
def _configure(count: int, steps: int) -> int:
    """Set up tiles for so many rows; return how many bytes of a row one product takes.

    As many steps as a tile holds and `steps` is a multiple of: tiles keep one size throughout.
    """
    at_once = min(steps, _PANEL_STEPS)
    while steps % at_once:
        at_once -= 1
    config = np.empty(TILE_BYTES, np.uint8)
    lower = max(1, count - TILE_ROWS)
    amx.configure(config.ctypes.data, min(count, TILE_ROWS), lower, 4 * at_once)
    return 4 * at_once


@in_kernel
def _load(weights: int, x: int, stride: int, count: int) -> None:
    """Read two tiles of weights, and the tiles of rows."""
    amx.load(UPPER, x, stride)
    amx.load(LEFT, weights, STEP_BYTES)
    amx.load(RIGHT, weights + BLOCK_BYTES, STEP_BYTES)
    if count > TILE_ROWS:
        amx.load(LOWER, x + TILE_ROWS * stride, stride)


@in_kernel
def _store(out: int, count: int) -> None:
    """Write the sums, 32 bits each, rows 64 numbers apart; they are zero then."""
    amx.store(_C00, out, STEP_BYTES)
    amx.store(_C01, out + BLOCK_BYTES, STEP_BYTES)
    amx.zero(_C00)
    amx.zero(_C01)
    if count > TILE_ROWS:
        lower = out + TILE_ROWS * STEP_BYTES
        amx.store(_C10, lower, STEP_BYTES)
        amx.store(_C11, lower + BLOCK_BYTES, STEP_BYTES)
        amx.zero(_C10)
        amx.zero(_C11)


@in_kernel
def _multiply_bytes(
    codes: int, steps: int, x: int, stride: int, count: int, chunk: int, dots: NDArray[np.int32]
) -> None:
    """Write the products of the codes of a group."""
    for block in range(0, STEP_BYTES, 2 * BLOCK_BYTES):
        for start in range(0, 4 * steps, chunk):
            _load(codes + start // 4 * STEP_BYTES + block, x + start, stride, count)
            amx.add_bytes(_C00, UPPER, LEFT)
            amx.add_bytes(_C01, UPPER, RIGHT)
            if count > TILE_ROWS:
                amx.add_bytes(_C10, LOWER, LEFT)
                amx.add_bytes(_C11, LOWER, RIGHT)
        _store(dots.ctypes.data + block, count)


@in_kernel
def _widen(codes: NDArray[np.uint8], widened: NDArray[np.uint8]) -> None:
    """Write the low halves of a step's bytes as a step of their own, then the high ones."""
    for start in range(0, len(codes), STEP_BYTES):
        source = numbers_at(codes.ctypes.data + start, STEP_BYTES, np.uint8)
        low = numbers_at(widened.ctypes.data + 2 * start, STEP_BYTES, np.uint8)
        high = numbers_at(widened.ctypes.data + 2 * start + STEP_BYTES, STEP_BYTES, np.uint8)
        for i in range(STEP_BYTES):
            low[i] = source[i] & np.uint8(15)
            high[i] = source[i] >> np.uint8(4)


@in_kernel
def _add_scaled(
    dots: NDArray[np.int32],
    centre: np.int32,
    parameters: int,
    row: int,
    stride: int,
    count: int,
    group: int,
    out: int,
) -> None:
    """Add what the codes of a group mean (see `tiles.add_scaled`); the first group is written."""
    for n in range(count):
        sums = floats_at(out + n * STEP_BYTES, PANEL)
        scale = floats_at(row + n * stride, 1)[0]
        total = numbers_at(row + n * stride + 4, 1, np.int32)[0]
        offset, share = np.int32(centre * total), np.float32(total)
        if group == 0:
            for i in range(PANEL):
                sums[i] = np.float32(0)
        for i in range(PANEL):
            number = np.float32(np.int32(dots[n, i] - offset))
            middle = share * read(BFLOAT16, parameters, PANEL + i)
            value = fused(number, read(BFLOAT16, parameters, i), middle)
            sums[i] = fused(value, scale, sums[i])
