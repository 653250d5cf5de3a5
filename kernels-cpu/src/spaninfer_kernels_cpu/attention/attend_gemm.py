"""The GEMMs of attention: scores of queries and keys, and sums of values by their weights.

A block of up to 64 tokens, which lies in scratch memory as panels do (`attend_block`; of pairs of
bfloat16 `pair_tile`). Tiles are no wider than there are keys or channels: in tiles of 64 outputs,
heads of 32 channels would take twice the multiplications that they need, and heads of 80 1.6 times
as many.
"""

from __future__ import annotations

from typing import Any

from spaninfer_kernels_cpu.attention.attend_block import Extent, Scratch
from spaninfer_kernels_cpu.attention.attention_kernels import AttentionKernels
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import smaller
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.gemm.register_tile import (
    add_tile,
    row_addresses,
    store_rows,
    store_tile,
)
from spaninfer_kernels_cpu.gemm.tile_gemm import multiply
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, LANES, PANEL, STEP_BYTES


@device_function
def score(kernels: AttentionKernels, extent: Extent, scratch: Scratch) -> None:
    """Write scores[N 64] of all queries and a block's keys."""
    if kernels.is_wide and extent.num_keys <= LANES:
        _score_rows(kernels.one, kernels.quarter, extent, scratch)
    elif kernels.is_wide and extent.num_keys <= 2 * LANES:
        _score_rows(kernels.one, kernels.half, extent, scratch)
    else:
        _score_rows(kernels.one, kernels.many, extent, scratch)


@device_function
def _score_rows(one: MicroKernel, many: MicroKernel, extent: Extent, scratch: Scratch) -> None:
    for first in range(0, extent.num_queries, many.rows):
        if first + 1 == extent.num_queries:
            _score_tile(one, first, extent, scratch)
        else:
            _score_tile(many, first, extent, scratch)


@device_function
def _score_tile(micro: MicroKernel, first: int, extent: Extent, scratch: Scratch) -> None:
    stride = extent.size * micro.channel_bytes
    panel_bytes = stride * STEP_BYTES // 4
    address = scratch.queries + first * stride
    rows: Any = row_addresses(micro, address, stride, extent.num_queries - 1 - first)
    for block in range(0, (extent.num_keys + LANES - 1) // LANES, micro.blocks):
        tile = multiply(micro, scratch.keys, rows, block, (1, panel_bytes, 0), (0, 0))
        store_tile(micro, tile, scratch.scores + first * STEP_BYTES + block * BLOCK_BYTES)


@device_function
def add_values(kernels: AttentionKernels, extent: Extent, scratch: Scratch, is_first: bool) -> None:
    """Multiply the sums by `kept` and add the products of weights[N count] and values[count E].

    `is_first`: the products are all, whatever the sums are.
    """
    for panel in range((extent.size + PANEL - 1) // PANEL):
        width = extent.size - panel * PANEL
        if kernels.is_wide and width <= LANES:
            _add_rows(kernels.one, kernels.quarter, panel, extent, scratch, is_first)
        elif kernels.is_wide and width <= 2 * LANES:
            _add_rows(kernels.one, kernels.half, panel, extent, scratch, is_first)
        else:
            _add_rows(kernels.one, kernels.many, panel, extent, scratch, is_first)


@device_function
def _add_rows(
    one: MicroKernel,
    many: MicroKernel,
    panel: int,
    extent: Extent,
    scratch: Scratch,
    is_first: bool,
) -> None:
    for first in range(0, extent.num_queries, many.rows):
        if first + 1 == extent.num_queries:
            _add_tile(one, first, panel, extent, scratch, is_first)
        else:
            _add_tile(many, first, panel, extent, scratch, is_first)


@device_function
def _add_tile(
    micro: MicroKernel, first: int, panel: int, extent: Extent, scratch: Scratch, is_first: bool
) -> None:
    address = scratch.scores + first * STEP_BYTES
    rows: Any = row_addresses(micro, address, STEP_BYTES, extent.num_queries - 1 - first)
    stride = (extent.size + PANEL - 1) // PANEL * STEP_BYTES
    values = scratch.values + panel * PANEL * STEP_BYTES
    width = smaller(PANEL, extent.size - panel * PANEL)
    steps = (extent.num_keys * micro.channel_bytes + 3) // 4
    for block in range(0, (width + LANES - 1) // LANES, micro.blocks):
        tile = multiply(micro, values, rows, block, (1, steps * STEP_BYTES, 0), (0, 0))
        sums = scratch.sums + first * stride + panel * STEP_BYTES + block * BLOCK_BYTES
        if is_first:
            store_rows(micro, tile, row_addresses(micro, sums, stride, micro.rows))
        else:
            add_tile(micro, tile, sums, stride, scratch.kept + first * 4)
