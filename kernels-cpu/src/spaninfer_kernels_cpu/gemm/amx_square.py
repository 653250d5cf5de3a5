"""Squares of AMX tiles: 32 rows by 32 outputs, over some channels, from and to sums in memory.

Four products take four loads of tiles, half of which pass by the L1 cache: the weights lie there
while all rows go by (`amx_panel`). Sums leave the tiles one after another, each while the products
of the others are under way: a store waits for the last product of its sums, some 50 cycles.
"""

from __future__ import annotations

from typing import NamedTuple

from spaninfer_kernels_cpu.codegen import amx
from spaninfer_kernels_cpu.codegen.amx import LEFT, LOWER, RIGHT, TILE_ROWS, UPPER
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.gemm.amx_tile import C00, C01, C10, C11, add
from spaninfer_kernels_cpu.gemm.micro_kernel import SQUARE_ROWS, MicroKernel
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, STEP_BYTES


class Square(NamedTuple):
    """Rows and weights of a square.

    `x` and `weights`: addresses of the first; rows are `stride` bytes apart, their second parts
    `part_bytes` behind the first. It takes `steps` products, of `chunk` bytes of a row each.
    """

    x: int
    stride: int
    part_bytes: int
    weights: int
    steps: int
    chunk: int


@device_function
def multiply_step(micro: MicroKernel, job: Square, step: int, count: int) -> None:
    """Add the products of one step of `count` rows to the sums."""
    x, weights = job.x + step * job.chunk, job.weights + step * (job.chunk // 4 * STEP_BYTES)
    amx.load(LEFT, weights, STEP_BYTES)
    for part in range(micro.parts):
        amx.load_passing(UPPER, x + part * job.part_bytes, job.stride)
        add(micro, C00, UPPER, LEFT)
        if part == 0:
            amx.load(RIGHT, weights + BLOCK_BYTES, STEP_BYTES)
        add(micro, C01, UPPER, RIGHT)
        if count > TILE_ROWS:
            lower = x + part * job.part_bytes + TILE_ROWS * job.stride
            amx.load_passing(LOWER, lower, job.stride)
            add(micro, C10, LOWER, LEFT)
            add(micro, C11, LOWER, RIGHT)


@device_function
def single_steps(micro: MicroKernel, steps: int, count: int) -> int:
    """Return how many steps are multiplied one by one (`multiply_step`), before `end_square`."""
    last = 2 // micro.parts  # two products of each sum one after another
    return steps - last if count == SQUARE_ROWS and steps > last else steps


@device_function
def end_square(micro: MicroKernel, job: Square, count: int, out: int) -> None:
    """Add the last products, and write the sums; rows are STEP_BYTES apart."""
    steps = single_steps(micro, job.steps, count)
    if steps < job.steps:
        weights = job.weights + steps * (job.chunk // 4 * STEP_BYTES)
        _multiply_last(micro, job, (job.x + steps * job.chunk, weights), out)
    else:
        store_sums(out, STEP_BYTES, count)


@device_function
def _multiply_last(micro: MicroKernel, job: Square, at: tuple[int, int], out: int) -> None:
    """Add the last two products of each of the four sums and write it, one sum after another."""
    x, w = at
    if micro.parts > 1:
        x2, w2 = x + job.part_bytes, w
    else:
        x2, w2 = x + job.chunk, w + job.chunk // 4 * STEP_BYTES
    lower, lower2 = x + TILE_ROWS * job.stride, x2 + TILE_ROWS * job.stride
    out_lower = out + TILE_ROWS * STEP_BYTES
    amx.load(LEFT, w, STEP_BYTES)
    amx.load_passing(UPPER, x, job.stride)
    add(micro, C00, UPPER, LEFT)
    amx.load(RIGHT, w2, STEP_BYTES)
    amx.load_passing(LOWER, x2, job.stride)
    add(micro, C00, LOWER, RIGHT)
    amx.load(LEFT, w + BLOCK_BYTES, STEP_BYTES)
    add(micro, C01, UPPER, LEFT)
    amx.load(RIGHT, w2 + BLOCK_BYTES, STEP_BYTES)
    add(micro, C01, LOWER, RIGHT)
    amx.store(C00, out, STEP_BYTES)
    amx.load_passing(UPPER, lower, job.stride)
    add(micro, C11, UPPER, LEFT)
    amx.load_passing(LOWER, lower2, job.stride)
    add(micro, C11, LOWER, RIGHT)
    amx.store(C01, out + BLOCK_BYTES, STEP_BYTES)
    amx.load(LEFT, w, STEP_BYTES)
    add(micro, C10, UPPER, LEFT)
    amx.load(RIGHT, w2, STEP_BYTES)
    add(micro, C10, LOWER, RIGHT)
    amx.store(C11, out_lower + BLOCK_BYTES, STEP_BYTES)
    amx.store(C10, out_lower, STEP_BYTES)


@device_function
def begin_square(source: int, count: int) -> None:
    """Read the sums of up to 32 rows, STEP_BYTES apart; `source` 0 is zeros."""
    if source == 0:
        zero_sums()
    else:
        load_sums(source, STEP_BYTES, count)


@device_function
def zero_sums() -> None:
    """Set the sums to zero."""
    amx.zero(C00)
    amx.zero(C01)
    amx.zero(C10)
    amx.zero(C11)


@device_function
def load_sums(source: int, stride: int, count: int) -> None:
    """Read the sums of up to 32 rows, which are `stride` bytes apart."""
    amx.load(C00, source, stride)
    amx.load(C01, source + BLOCK_BYTES, stride)
    if count > TILE_ROWS:
        lower = source + TILE_ROWS * stride
        amx.load(C10, lower, stride)
        amx.load(C11, lower + BLOCK_BYTES, stride)


@device_function
def store_sums(out: int, stride: int, count: int) -> None:
    """Write the sums of up to 32 rows, `stride` bytes apart."""
    amx.store(C00, out, stride)
    amx.store(C01, out + BLOCK_BYTES, stride)
    if count > TILE_ROWS:
        lower = out + TILE_ROWS * stride
        amx.store(C10, lower, stride)
        amx.store(C11, lower + BLOCK_BYTES, stride)
