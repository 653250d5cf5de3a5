"""A block of up to 128 tokens by tiles of AMX: scores, weights and sums of 32 queries at a time.

Keys and values lie as pairs of bfloat16 (`pair_tile`), packed once for all queries of a task. The
scores of 32 queries stay in the first cache and become weights in their place. Keys that none of
the 32 sees are left out, 32 at a time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from spaninfer_kernels_cpu.attention.attend_block import (
    Block,
    Scratch,
    Softmax,
    Task,
    adjust,
    seen_keys,
)
from spaninfer_kernels_cpu.attention.attention_kernels import AttentionKernels
from spaninfer_kernels_cpu.attention.pair_tile import load_key_pairs, load_value_pairs
from spaninfer_kernels_cpu.attention.score_vectors import TOGETHER
from spaninfer_kernels_cpu.attention.seen_weights import (
    SCORE_BYTES,
    STEP_KEYS,
    Rows,
    weigh_seen,
)
from spaninfer_kernels_cpu.attention.spans import CacheArrays
from spaninfer_kernels_cpu.codegen import amx
from spaninfer_kernels_cpu.codegen.amx import TILE_BYTES, TILE_ROWS
from spaninfer_kernels_cpu.codegen.array_view import floats_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import FLOAT32, read, smaller
from spaninfer_kernels_cpu.codegen.memory import StackBytes, stack
from spaninfer_kernels_cpu.gemm.amx_square import (
    Square,
    load_sums,
    multiply_step,
    store_sums,
    zero_sums,
)
from spaninfer_kernels_cpu.gemm.micro_kernel import SQUARE_ROWS, MicroKernel
from spaninfer_kernels_cpu.quantisation.layout import PANEL, STEP_BYTES

_CONFIG: Final = StackBytes(TILE_BYTES)
_SQUARE: Final = 32  # outputs, and channels or keys of a step
_ONE: Final = np.float32(1)


@device_function
def start_tiles() -> None:
    """Set up whole tiles, for all blocks of a task."""
    amx.configure(stack(_CONFIG), TILE_ROWS, TILE_ROWS, TILE_BYTES)
    amx.keep_awake()


@device_function
def load_panel(
    kernels: AttentionKernels, spans: CacheArrays, first: int, count: int, scratch: Scratch
) -> None:
    """Write pairs of up to 64 tokens that were found: keys[2 D/2 64], values[ceil(E / 64) 64 64]
    from token `first` of the block on, and zeros behind the last up to a multiple of 32.
    """
    keys = scratch.keys + first // PANEL * (spans.key_size // 2 * STEP_BYTES)
    values = scratch.values + first // 2 * STEP_BYTES
    load_key_pairs(kernels.kind, spans, count, scratch.rows, keys)
    amx.keep_awake()
    load_value_pairs(kernels.kind, spans, count, scratch.rows, values)
    for pair in range((count + 1) // 2, (count + STEP_KEYS - 1) // STEP_KEYS * (STEP_KEYS // 2)):
        for channel in range(0, spans.value_size, PANEL):
            floats_at(values + (channel + pair) * STEP_BYTES, PANEL)[:] = np.float32(0)


@device_function
def attend_tiles(
    kernels: AttentionKernels,
    block: Block,
    task: Task,
    spans: CacheArrays,
    softmax: Softmax,
    scratch: Scratch,
) -> None:
    """Take in a block whose keys and values lie in scratch memory."""
    adjusts = softmax.softcap > 0 or softmax.slopes != 0 or softmax.biases != 0
    is_first = block.begin == task.begin
    for first in range(0, task.num_queries, SQUARE_ROWS):
        rows = _rows_from(first, block, task, softmax)
        sees_any = rows.start < rows.stop
        if sees_any:
            _score(kernels.many, rows, spans.key_size, scratch)
            if adjusts:
                _adjust_rows(rows, block, task, softmax, scratch)
            for row in range(0, rows.num_queries, TOGETHER):
                weigh_seen(row, rows, block, task, softmax, scratch)
                amx.keep_awake()
            if not is_first:
                _keep(rows, spans.value_size, scratch)
        if sees_any or is_first:
            _add(kernels.many, rows, spans.value_size, is_first, scratch)


@device_function
def _rows_from(first: int, block: Block, task: Task, softmax: Softmax) -> Rows:
    """Return up to 32 queries from `first` on."""
    count = smaller(SQUARE_ROWS, task.num_queries - first)
    start, _ = seen_keys(first, block, task, softmax)
    _, stop = seen_keys(first + count - 1, block, task, softmax)
    stop = (stop + STEP_KEYS - 1) // STEP_KEYS * STEP_KEYS
    return Rows(first, count, start // STEP_KEYS * STEP_KEYS, stop)


@device_function
def _score(micro: MicroKernel, rows: Rows, size: int, scratch: Scratch) -> None:
    """Write scores[count 128] of the keys that rows see."""
    queries = scratch.queries + rows.first * size * 2
    for key in range(rows.start, rows.stop, _SQUARE):
        keys = scratch.keys + key // PANEL * (size // 2 * STEP_BYTES) + key % PANEL * 4
        square = Square(queries, size * 2, 0, keys, size // _SQUARE, TILE_BYTES)
        zero_sums()
        for step in range(square.steps):
            multiply_step(micro, square, step, rows.num_queries)
        store_sums(scratch.scores + key * 4, SCORE_BYTES, rows.num_queries)


@device_function
def _adjust_rows(rows: Rows, block: Block, task: Task, softmax: Softmax, scratch: Scratch) -> None:
    """Cap scores, and add to them what depends on the place."""
    for row in range(rows.num_queries):
        n = rows.first + row
        first, stop = seen_keys(n, block, task, softmax)
        if first < stop:
            scores = floats_at(scratch.scores + row * SCORE_BYTES + first * 4, stop - first)
            adjust(scores, n, block.begin + first, task, softmax)


@device_function
def _keep(rows: Rows, size: int, scratch: Scratch) -> None:
    """Multiply the sums of rows by what a higher peak leaves of them."""
    width = (size + PANEL - 1) // PANEL * STEP_BYTES
    for n in range(rows.first, rows.first + rows.num_queries):
        kept = read(FLOAT32, scratch.kept, n)
        if kept != _ONE:
            sums = floats_at(scratch.sums + n * width, size)
            for e in range(size):
                sums[e] *= kept


@device_function
def _add(micro: MicroKernel, rows: Rows, size: int, is_first: bool, scratch: Scratch) -> None:
    """Add the products of weights and values to sums; `is_first`: they are all."""
    width = (size + PANEL - 1) // PANEL * STEP_BYTES
    for channel in range(0, size, _SQUARE):
        values = scratch.values + channel // PANEL * PANEL * STEP_BYTES + channel % PANEL * 4
        sums = scratch.sums + rows.first * width + channel * 4
        if is_first:
            zero_sums()
        else:
            load_sums(sums, width, rows.num_queries)
        square = Square(scratch.scores, SCORE_BYTES, 0, values, rows.stop // _SQUARE, TILE_BYTES)
        for step in range(rows.start // _SQUARE, square.steps):
            multiply_step(micro, square, step, rows.num_queries)
        store_sums(sums, width, rows.num_queries)
