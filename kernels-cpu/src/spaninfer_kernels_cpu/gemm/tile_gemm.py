"""Products of activations and packed weights, for Numba to compile; `products` calls them.

A task is a panel of 64 outputs times up to ROWS_PER_TASK rows: the panel comes from memory once
and stays in the second-level cache while tiles of a few rows and blocks go over it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen import amx
from spaninfer_kernels_cpu.codegen.array_view import floats_at
from spaninfer_kernels_cpu.codegen.compiled import entry
from spaninfer_kernels_cpu.codegen.device_function import PART, in_kernel
from spaninfer_kernels_cpu.codegen.prefetch import Lines, ask_for_share, share_of
from spaninfer_kernels_cpu.gemm import amx_tile
from spaninfer_kernels_cpu.gemm.amx_tile import Sizes, Strided
from spaninfer_kernels_cpu.gemm.micro_kernel import ROWS_PER_TASK, Recipe
from spaninfer_kernels_cpu.gemm.register_tile import (
    add_dots,
    add_products,
    add_scaled,
    row_addresses,
    start_dots,
    store_tile,
    zero_tile,
)
from spaninfer_kernels_cpu.quantisation.layout import (
    BLOCK_BYTES,
    LANES,
    PANEL,
    PARAMETER_BYTES,
    ROW_PARAMETER_BYTES,
)
from spaninfer_kernels_cpu.runtime.workers import COUNTER, Counter, next_task

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Tile = Any  # a tuple of vectors
Addresses = tuple[int, ...]

BLOCKS = PANEL // LANES

SIGNATURE = (
    COUNTER,
    types.Array(types.uint8, 2, "C", readonly=True),
    types.Array(types.uint8, 2, "C", readonly=True),
    types.int64,
    types.Array(types.float32, 1, "C", readonly=True),
    types.Array(types.float32, 2, "A"),
)


@cache
def kernel(one_row: Recipe, many_rows: Recipe) -> Callable[..., None]:
    """Return the function that multiplies by these recipes, not compiled yet."""

    @entry
    def work(
        counter: Counter, panels: Bytes, x: Bytes, groups: int, bias: Floats, out: Floats
    ) -> None:
        """Do the tasks that `counter` gives to this thread, until none is left."""
        if len(x) == 1:
            _work(one_row, counter, panels, x, groups, bias, out)
        else:
            _work(many_rows, counter, panels, x, groups, bias, out)

    return work


@in_kernel
def _work(
    recipe: Recipe,
    counter: Counter,
    panels: Bytes,
    x: Bytes,
    groups: int,
    bias: Floats,
    out: Floats,
) -> None:
    num_rows, stride = x.shape
    parts = (num_rows + ROWS_PER_TASK - 1) // ROWS_PER_TASK
    tile = np.empty((recipe.rows, PANEL), np.float32)
    group_bytes = panels.shape[1] // groups
    sizes = (groups, group_bytes, row_group_bytes(recipe, group_bytes))
    task = next_task(counter)
    while task < len(panels) * parts:
        panel, start = task // parts, task % parts * ROWS_PER_TASK
        weights = panels.ctypes.data + panel * panels.shape[1]
        for first in range(start, min(num_rows, start + ROWS_PER_TASK), recipe.rows):
            rows = (x.ctypes.data + first * stride, stride, num_rows - 1 - first)
            fill_tile(recipe, weights, rows, sizes, tile.ctypes.data, (0, 0))
            _write(tile, first, panel * PANEL, bias, out)
        task = next_task(counter)
    end_tiles(recipe)


def fill_tile(
    recipe: Recipe, weights: int, rows: Strided, sizes: Sizes, out: int, coming: Lines
) -> None:
    """Write the products of a panel and of rows to out[recipe.rows 64], float32.

    Rows of out behind the last of `rows` hold anything. `coming` are to be on their way to the
    second cache meanwhile.
    """
    raise NotImplementedError("exists in Numba functions only")


@overload(fill_tile, jit_options=PART)
def _fill_tile(
    recipe: Recipe,
    weights: int,  # noqa: ARG001
    rows: Strided,  # noqa: ARG001
    sizes: Sizes,  # noqa: ARG001
    out: int,  # noqa: ARG001
    coming: Lines,  # noqa: ARG001
) -> Callable[..., None]:
    """Choose the code; Numba hands in types, but wants the signature repeated to the letter."""
    kind: Any = recipe
    return _fill_by_tiles if kind.value.by_tiles else _fill_by_vectors


def _fill_by_vectors(
    recipe: Recipe, weights: int, rows: Strided, sizes: Sizes, out: int, coming: Lines
) -> None:
    addresses: Addresses = row_addresses(recipe, rows[0], rows[1], rows[2])
    for block in range(0, BLOCKS, recipe.blocks):
        sums = multiply(recipe, weights, addresses, block, sizes, coming)
        coming = (0, 0)
        store_tile(recipe, sums, out + block * BLOCK_BYTES)


def _fill_by_tiles(
    recipe: Recipe, weights: int, rows: Strided, sizes: Sizes, out: int, coming: Lines
) -> None:
    amx_tile.fill(recipe, weights, rows, sizes, out, coming)


def end_tiles(recipe: Recipe) -> None:
    """Give back what `fill_tile` took and kept for the next one."""
    raise NotImplementedError("exists in Numba functions only")


@overload(end_tiles, jit_options=PART)
def _end_tiles(recipe: Recipe) -> Callable[..., None]:
    """Choose the code: registers of AMX are given back once per task, which takes long."""
    kind: Any = recipe
    return _release if kind.value.by_tiles else _keep


def _release(recipe: Recipe) -> None:  # noqa: ARG001
    amx.release()


def _keep(recipe: Recipe) -> None:
    pass


def multiply(
    recipe: Recipe, weights: int, rows: Addresses, block: int, sizes: Sizes, coming: Lines
) -> Tile:
    """Return the products of a panel's blocks from `block` with rows, over all channels.

    `sizes` and `coming` are as in `fill_tile`.
    """
    raise NotImplementedError("exists in Numba functions only")


@overload(multiply, jit_options=PART)
def _multiply(
    recipe: Recipe,
    weights: int,  # noqa: ARG001
    rows: Addresses,  # noqa: ARG001
    block: int,  # noqa: ARG001
    sizes: Sizes,  # noqa: ARG001
    coming: Lines,  # noqa: ARG001
) -> Callable[..., Tile]:
    """Choose the code; Numba hands in types, but wants the signature repeated to the letter."""
    kind: Any = recipe
    return _multiply_codes if kind.value.has_codes else _multiply_numbers


def _multiply_numbers(
    recipe: Recipe, weights: int, rows: Addresses, block: int, sizes: Sizes, coming: Lines
) -> Tile:
    _, group_bytes, _ = sizes
    weights += block * BLOCK_BYTES
    # All at once: between steps of 25 cycles, requests cost one row more than they bring many.
    ask_for_share(coming, 0, coming[1])
    sums: Tile = zero_tile(recipe)
    for step in range(group_bytes // recipe.weight_bytes):
        sums = add_products(
            recipe, sums, weights + step * recipe.weight_bytes, rows, step * recipe.row_bytes
        )
    return sums


def _multiply_codes(
    recipe: Recipe, weights: int, rows: Addresses, block: int, sizes: Sizes, coming: Lines
) -> Tile:
    groups, group_bytes, row_group_bytes = sizes
    code_bytes = group_bytes - PARAMETER_BYTES
    sums: Tile = zero_tile(recipe)
    at_once = share_of(coming, groups)
    for group in range(groups):
        if recipe.ahead == 0:  # else nothing is coming but the tile's own weights
            ask_for_share(coming, group, at_once)
        codes = weights + group * group_bytes
        row = group * row_group_bytes
        row_end = groups * row_group_bytes + group * ROW_PARAMETER_BYTES
        dots = start_dots(recipe, rows, row_end)
        for step in range(code_bytes // recipe.weight_bytes):
            at = codes + block * BLOCK_BYTES + step * recipe.weight_bytes
            dots = add_dots(recipe, dots, at, rows, row + step * recipe.row_bytes)
        scales = codes + code_bytes + block * (BLOCK_BYTES // 2)
        sums = add_scaled(recipe, sums, dots, scales, rows, row_end)
    return sums


@in_kernel
def row_group_bytes(recipe: Recipe, group_bytes: int) -> int:
    """Return the bytes of the channels of a group in a row, from the bytes of one of a panel."""
    return (group_bytes - recipe.parameter_bytes) // recipe.weight_bytes * recipe.row_bytes


@in_kernel
def _write(tile: Floats, first: int, start: int, bias: Floats, out: Floats) -> None:
    """Copy the tile into out[first:, start:], with the bias if there is one."""
    width = min(PANEL, out.shape[1] - start)
    for row in range(min(len(tile), len(out) - first)):
        sums, place = tile[row], (first + row) * out.strides[0] + 4 * start
        into = floats_at(out.ctypes.data + place, width)  # columns are contiguous: see pointer
        if len(bias) > 0:
            for i in range(width):
                into[i] = sums[i] + bias[start + i]
        else:
            for i in range(width):
                into[i] = sums[i]
