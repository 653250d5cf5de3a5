"""Products of activations and packed weights, for Numba to compile; `products` calls them.

A task is a panel of 64 outputs times up to PANEL_ROWS_PER_TASK rows: the panel comes from memory
once and stays in the second-level cache while tiles of a few rows and blocks go over it.
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
from spaninfer_kernels_cpu.codegen.device_function import INLINE, device_function
from spaninfer_kernels_cpu.codegen.prefetch import Lines, ask_for_share, share_of
from spaninfer_kernels_cpu.gemm import amx_tile
from spaninfer_kernels_cpu.gemm.amx_tile import Sizes, Strided
from spaninfer_kernels_cpu.gemm.micro_kernel import PANEL_ROWS_PER_TASK, MicroKernel
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
def kernel(one_row: MicroKernel, many_rows: MicroKernel) -> Callable[..., None]:
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


@device_function
def _work(
    micro: MicroKernel,
    counter: Counter,
    panels: Bytes,
    x: Bytes,
    groups: int,
    bias: Floats,
    out: Floats,
) -> None:
    num_rows, stride = x.shape
    parts = (num_rows + PANEL_ROWS_PER_TASK - 1) // PANEL_ROWS_PER_TASK
    tile = np.empty((micro.rows, PANEL), np.float32)
    group_bytes = panels.shape[1] // groups
    sizes = (groups, group_bytes, row_group_bytes(micro, group_bytes))
    task = next_task(counter)
    while task < len(panels) * parts:
        panel, start = task // parts, task % parts * PANEL_ROWS_PER_TASK
        weights = panels.ctypes.data + panel * panels.shape[1]
        for first in range(start, min(num_rows, start + PANEL_ROWS_PER_TASK), micro.rows):
            rows = (x.ctypes.data + first * stride, stride, num_rows - 1 - first)
            fill_tile(micro, weights, rows, sizes, tile.ctypes.data, (0, 0))
            _write(tile, first, panel * PANEL, bias, out)
        task = next_task(counter)
    end_tiles(micro)


def fill_tile(
    micro: MicroKernel, weights: int, rows: Strided, sizes: Sizes, out: int, coming: Lines
) -> None:
    """Write the products of a panel and of rows to out[recipe.rows 64], float32.

    Rows of out behind the last of `rows` hold anything. `coming` are to be on their way to the
    second cache meanwhile.
    """
    raise NotImplementedError("exists in Numba functions only")


@overload(fill_tile, jit_options=INLINE)
def _fill_tile(
    micro: MicroKernel,
    weights: int,  # noqa: ARG001
    rows: Strided,  # noqa: ARG001
    sizes: Sizes,  # noqa: ARG001
    out: int,  # noqa: ARG001
    coming: Lines,  # noqa: ARG001
) -> Callable[..., None]:
    """Choose the code; Numba hands in types, but wants the signature repeated to the letter."""
    kind: Any = micro
    return _fill_by_tiles if kind.value.by_tiles else _fill_by_vectors


def _fill_by_vectors(
    micro: MicroKernel, weights: int, rows: Strided, sizes: Sizes, out: int, coming: Lines
) -> None:
    addresses: Addresses = row_addresses(micro, rows[0], rows[1], rows[2])
    for block in range(0, BLOCKS, micro.blocks):
        sums = multiply(micro, weights, addresses, block, sizes, coming)
        coming = (0, 0)
        store_tile(micro, sums, out + block * BLOCK_BYTES)


def _fill_by_tiles(
    micro: MicroKernel, weights: int, rows: Strided, sizes: Sizes, out: int, coming: Lines
) -> None:
    amx_tile.fill(micro, weights, rows, sizes, out, coming)


def end_tiles(micro: MicroKernel) -> None:
    """Give back what `fill_tile` took and kept for the next one."""
    raise NotImplementedError("exists in Numba functions only")


@overload(end_tiles, jit_options=INLINE)
def _end_tiles(micro: MicroKernel) -> Callable[..., None]:
    """Choose the code: registers of AMX are given back once per task, which takes long."""
    kind: Any = micro
    return _release if kind.value.by_tiles else _keep


def _release(micro: MicroKernel) -> None:  # noqa: ARG001
    amx.release()


def _keep(micro: MicroKernel) -> None:
    pass


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


@overload(multiply, jit_options=INLINE)
def _multiply(
    micro: MicroKernel,
    weights: int,  # noqa: ARG001
    rows: Addresses,  # noqa: ARG001
    block: int,  # noqa: ARG001
    sizes: Sizes,  # noqa: ARG001
    coming: Lines,  # noqa: ARG001
) -> Callable[..., Tile]:
    """Choose the code; Numba hands in types, but wants the signature repeated to the letter."""
    kind: Any = micro
    return _multiply_quantised if kind.value.is_quantised else _multiply_numbers


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


def _multiply_quantised(
    micro: MicroKernel,
    weights: int,
    rows: Addresses,
    block: int,
    sizes: Sizes,
    coming: Lines,
) -> Tile:
    groups, group_bytes, row_group_bytes = sizes
    code_bytes = group_bytes - PARAMETER_BYTES
    sums: Tile = zero_tile(micro)
    at_once = share_of(coming, groups)
    for group in range(groups):
        if micro.ahead == 0:  # else nothing is coming but the tile's own weights
            ask_for_share(coming, group, at_once)
        codes = weights + group * group_bytes
        row = group * row_group_bytes
        row_end = groups * row_group_bytes + group * ROW_PARAMETER_BYTES
        dots = start_dots(micro, rows, row_end)
        for step in range(code_bytes // micro.weight_bytes):
            at = codes + block * BLOCK_BYTES + step * micro.weight_bytes
            dots = add_dots(micro, dots, at, rows, row + step * micro.row_bytes)
        scales = codes + code_bytes + block * (BLOCK_BYTES // 2)
        sums = add_scaled(micro, sums, dots, scales, rows, row_end)
    return sums


@device_function
def row_group_bytes(micro: MicroKernel, group_bytes: int) -> int:
    """Return the bytes of the channels of a group in a row, from the bytes of one of a panel."""
    return (group_bytes - micro.parameter_bytes) // micro.weight_bytes * micro.row_bytes


@device_function
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
