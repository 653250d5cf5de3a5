"""A tile of a GEMM: a few rows by a panel of 64 outputs, for Numba functions to call."""

from __future__ import annotations

from typing import Any

from spaninfer_kernels_cpu.codegen import amx
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.prefetch import Lines, ask_for_share, share_of
from spaninfer_kernels_cpu.codegen.specialization import specialized
from spaninfer_kernels_cpu.gemm import amx_tile
from spaninfer_kernels_cpu.gemm.amx_tile import Sizes, Strided
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
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

Tile = Any  # a tuple of vectors
Addresses = tuple[int, ...]

BLOCKS = PANEL // LANES


@specialized(lambda micro: _fill_by_tiles if micro.by_tiles else _fill_by_vectors)
def fill_tile(
    micro: MicroKernel, weights: int, rows: Strided, sizes: Sizes, out: int, coming: Lines
) -> None:
    """Write the products of a panel and of rows to out[micro.rows 64], float32.

    Rows of out behind the last of `rows` hold anything. `coming` are to be on their way to the
    second cache meanwhile.
    """
    raise NotImplementedError("exists in Numba functions only")


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


@specialized(lambda micro: _release if micro.by_tiles else _keep)
def end_tiles(micro: MicroKernel) -> None:
    """Give back what `fill_tile` took and kept for the next one: once per task, it is slow."""
    raise NotImplementedError("exists in Numba functions only")


def _release(micro: MicroKernel) -> None:  # noqa: ARG001
    amx.release()


def _keep(micro: MicroKernel) -> None:
    pass


@specialized(lambda micro: _multiply_quantised if micro.is_quantised else _multiply_numbers)
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
