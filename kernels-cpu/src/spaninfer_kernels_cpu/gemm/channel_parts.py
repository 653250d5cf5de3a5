"""Many rows by a panel of float32 numbers, some channels at a time, which stay in the L2 cache.

For CPUs whose tile is a block wide (AVX2): every tile of rows reads the panel anew, from the L3
cache where all channels, and the rows beside them, do not fit into the L2. Sums wait in memory
between two parts of the channels and go on where they stopped, so a row has the same bits as alone
(Goto and van de Geijn 2008, without copies in the L1 cache: this core does not wait for its L2).
192 rows by 5,120 channels 1.4 times, by 1,536 1.1 times as fast (one core of a Zen 3).
"""

from __future__ import annotations

from typing import Any, Final

from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import larger, smaller
from spaninfer_kernels_cpu.codegen.memory import CACHE_LINE
from spaninfer_kernels_cpu.codegen.prefetch import Lines, ask_for_share, share_of
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.gemm.panel_rows import PanelRows
from spaninfer_kernels_cpu.gemm.register_tile import (
    add_products,
    load_tile,
    row_addresses,
    store_tile,
    zero_tile,
)
from spaninfer_kernels_cpu.gemm.unpacked_block import Ending, end_tile
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, LANES, PANEL, STEP_BYTES

PARTS_FROM: Final = 96
"""Rows: fewer take all channels at once. A part is then over before the next one has come: by 1,280
and 1,536 channels 64 rows 0.87 times, 96 rows 1.02 and 1.08 times as fast (one core of a Zen 3).
"""

CHANNELS: Final = 384  # at most, of a part: 96 KB of a panel, and 288 of 192 rows


@device_function
def multiply_by_parts(micro: MicroKernel, job: PanelRows, ending: Ending, following: int) -> None:
    """Write the products of rows and a panel where `ending` says, or leave them in the job's sums.

    While a part is multiplied, the next one is on its way to the L2 cache, behind the last the
    first of the panel at `following` (0: of none).
    """
    channels = job.sizes[1] // STEP_BYTES
    parts = larger(1, (channels + CHANNELS - 1) // CHANNELS)
    each = (channels + parts - 1) // parts
    for first in range(0, channels, each):
        count = smaller(each, channels - first)
        is_last = first + count == channels
        coming = following if is_last else job.panel + (first + each) * STEP_BYTES
        lines = (coming, 0 if coming == 0 else each * STEP_BYTES // CACHE_LINE)
        _multiply_part(micro, job, ending, (first, count, is_last), lines)


@device_function
def _multiply_part(
    micro: MicroKernel,
    job: PanelRows,
    ending: Ending,
    part: tuple[int, int, bool],
    coming: Lines,
) -> None:
    """Add the products with some channels: the first, how many, and whether they are the last."""
    first, count, is_last = part
    ends, at_once = is_last and ending.is_direct, _share(micro, job, coming)
    turn = 0
    for row in range(0, job.num_rows, micro.rows):
        last = job.num_rows - 1 - row
        rows: Any = row_addresses(micro, job.x + row * job.stride, job.stride, last)
        for block in range(PANEL // LANES):
            ask_for_share(coming, turn, at_once)
            turn += 1
            kept = job.sums + row * STEP_BYTES + block * BLOCK_BYTES
            if first == 0:
                sums: Any = zero_tile(micro)
            else:
                sums = load_tile(micro, kept)
            at = job.panel + block * BLOCK_BYTES
            for channel in range(first, first + count):
                step = at + channel * STEP_BYTES
                sums = add_products(micro, sums, step, rows, channel * micro.row_bytes)
            if ends:
                out_at = ending.out + row * ending.stride + block * BLOCK_BYTES
                outs: Any = row_addresses(micro, out_at, ending.stride, last)
                end_tile(micro, sums, ending, (row, last, block), outs)
            else:
                store_tile(micro, sums, kept)


@device_function
def _share(micro: MicroKernel, job: PanelRows, coming: Lines) -> int:
    """Return how many lines to ask for before each tile."""
    tiles = (job.num_rows + micro.rows - 1) // micro.rows
    return share_of(coming, tiles * (PANEL // LANES))
