"""Attention over spans, for Numba functions to call; `attention` describes and checks arguments.

A task is an item of `attention_plan` (neighbouring rows of one request and a chunk of its tokens)
times the query heads that share a key head. It goes over its tokens in blocks of 64
(`attend_block`) and writes its rows, or, where they have several chunks, a part for `merge_task`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spaninfer_kernels_cpu.attention.amx_block import attend_tiles, load_panel, start_tiles
from spaninfer_kernels_cpu.attention.attend_block import (
    Block,
    Extent,
    Scratch,
    Softmax,
    Task,
    find_rows,
    find_selected,
    load_keys,
    load_values,
    scratch_at,
    sees_all,
    soften,
)
from spaninfer_kernels_cpu.attention.attend_gemm import add_values, score
from spaninfer_kernels_cpu.attention.attention_kernels import AttentionKernels
from spaninfer_kernels_cpu.attention.attention_plan import ITEM_NUMBERS, QUERIES
from spaninfer_kernels_cpu.attention.few_queries import (
    add_values_in_place,
    reads_in_place,
    score_in_place,
)
from spaninfer_kernels_cpu.attention.pair_tile import (
    load_key_pairs,
    load_value_pairs,
    narrow_weights,
)
from spaninfer_kernels_cpu.attention.pair_weights import weigh_as_pairs
from spaninfer_kernels_cpu.attention.query_copy import copy_query
from spaninfer_kernels_cpu.attention.score_vectors import NOTHING_SEEN
from spaninfer_kernels_cpu.attention.seen_weights import BLOCK_KEYS
from spaninfer_kernels_cpu.attention.spans import CacheArrays
from spaninfer_kernels_cpu.codegen import amx
from spaninfer_kernels_cpu.codegen.device_function import device_function, host_device_function
from spaninfer_kernels_cpu.codegen.elements import (
    FLOAT32,
    larger,
    read,
    read_index,
    smaller,
    write,
)
from spaninfer_kernels_cpu.codegen.exponential import exp
from spaninfer_kernels_cpu.codegen.specialization import specialized
from spaninfer_kernels_cpu.quantisation.layout import PANEL, STEP_BYTES

PART_NUMBERS = 2  # peak and total, in front of the sums of a part

_ZERO = np.float32(0)
_ONE = np.float32(1)


class SelectedKeys(NamedTuple):
    """positions[T top_k] (int32) of the keys that each row reads, in ascending order, and what
    request[T] (int32) it is of. Address 0: rows read all keys that they see.

    A row has as many as it sees, or `top_k`; items (`attention_plan.plan_selected`) count in them.
    """

    positions: int
    top_k: int
    request: int


class Operands(NamedTuple):
    """Rows query[T H D] and out[T H E], float32, and what of them to compute. Addresses in bytes.

    Heads of a query lie side by side, rows `query_stride` bytes apart; `out` has no gaps. `items`
    are those of `attention_plan`; row r of the span tables (int32) begins r * table_stride bytes
    into `tables`; `parts` is memory for `part_bytes` times the parts of the plan.
    """

    query: int
    query_stride: int
    out: int
    heads: int
    items: int
    tables: int
    table_stride: int
    parts: int
    selected: SelectedKeys


class Problem(NamedTuple):
    """Operands, the KV cache, and the softmax between them."""

    operands: Operands
    spans: CacheArrays
    softmax: Softmax


@host_device_function
def scratch_bytes(key_size: int, value_size: int) -> int:
    """Return how much memory a caller of `attend_task` lends."""
    return scratch_at(0, key_size, value_size)[1]


@device_function
def part_bytes(heads: int, value_size: int) -> int:
    """Return the bytes of a part: of one row and all heads, peaks, totals and sums."""
    return heads * (value_size + PART_NUMBERS) * 4


@host_device_function
def head_tasks(heads: int, kv_heads: int) -> int:
    """Return how many tasks every item of the plan is: one, or a few, per key head."""
    group = heads // kv_heads
    return kv_heads * ((group + QUERIES - 1) // QUERIES)


@device_function
def attend_task(
    kernels: AttentionKernels, number: int, unit: int, problem: Problem, memory: int
) -> None:
    """Compute task `unit` of `head_tasks` of item `number`.

    At `memory` are `scratch_bytes` that this caller alone uses.
    """
    operands, spans = problem.operands, problem.spans
    scratch, _ = scratch_at(memory, spans.key_size, spans.value_size)
    group = operands.heads // spans.kv_heads
    per_head = head_tasks(operands.heads, spans.kv_heads) // spans.kv_heads
    head = unit // per_head * group + unit % per_head * QUERIES
    num_heads = smaller(QUERIES, group - unit % per_head * QUERIES)
    item = operands.items + number * ITEM_NUMBERS * 4
    task = _task(item, head, num_heads, operands, problem.softmax.window)
    _attend(kernels, task, problem, scratch)


@device_function
def merge_task(number: int, operands: Operands, value_size: int, sinks: int) -> None:
    """Join the parts of the rows of which item `number` is the first part, if it is one.

    Once all tasks of `attend_task` are done. sinks[H] (float32) may be 0.
    """
    item = operands.items + number * ITEM_NUMBERS * 4
    rows, pieces = read_index(item, 1) - read_index(item, 0), read_index(item, 7)
    if pieces < 2:
        return
    record = (value_size + PART_NUMBERS) * 4
    units = rows * operands.heads
    for unit in range(units):
        first = operands.parts + (read_index(item, 6) * operands.heads + unit) * record
        out = operands.out + (read_index(item, 0) * operands.heads + unit) * value_size * 4
        sink = _sink(sinks, unit % operands.heads)
        _merge(first, units * record, pieces, value_size, sink, out)


@device_function
def _merge(first: int, stride: int, pieces: int, size: int, sink: np.float32, out: int) -> None:
    """Write the softmax's mean of values whose parts lie `stride` bytes apart."""
    peak, total = sink, _ZERO
    for piece in range(pieces):
        peak = larger(peak, read(FLOAT32, first + piece * stride, 0))
    for e in range(size):
        write(FLOAT32, out, e, _ZERO)
    for piece in range(pieces):
        record = first + piece * stride
        weight = exp(read(FLOAT32, record, 0) - peak)
        total += weight * read(FLOAT32, record, 1)
        sums = record + PART_NUMBERS * 4
        for e in range(size):
            write(FLOAT32, out, e, read(FLOAT32, out, e) + weight * read(FLOAT32, sums, e))
    inverse = _ONE / (total + (exp(sink - peak) if sink > NOTHING_SEEN else _ZERO))
    for e in range(size):
        write(FLOAT32, out, e, read(FLOAT32, out, e) * inverse)


@device_function
def _sink(sinks: int, head: int) -> np.float32:
    return read(FLOAT32, sinks, head) if sinks != 0 else NOTHING_SEEN


# ---- tasks -------------------------------------------------------------------------------------


@device_function
def _task(item: int, head: int, num_heads: int, operands: Operands, window: int) -> Task:
    row, position, request = read_index(item, 0), read_index(item, 3), read_index(item, 2)
    if operands.selected.positions != 0:
        request = read_index(operands.selected.request, row)
    seen_from = larger(0, position - window + 1) if window > 0 else 0
    return Task(
        row,
        head,
        num_heads,
        (read_index(item, 1) - row) * num_heads,
        position,
        larger(read_index(item, 4), seen_from),
        read_index(item, 5),
        operands.tables + request * operands.table_stride,
        read_index(item, 6),
        read_index(item, 8),
    )


@device_function
def _attend(kernels: AttentionKernels, task: Task, problem: Problem, scratch: Scratch) -> None:
    """Compute a task in one pass over its tokens."""
    spans = problem.spans
    in_place = reads_in_place(task.num_queries, spans.key_size, spans.value_size)
    by_tiles = kernels.by_tiles and not in_place
    if by_tiles:
        start_tiles()
    _start(kernels, task, problem, scratch)
    begin = task.begin
    while begin < task.end:
        count = smaller(BLOCK_KEYS if by_tiles else PANEL, task.end - begin)
        _over_block(kernels, task, begin, count, problem, scratch)
        begin += count
    if by_tiles:
        amx.release()
    _finish(task, problem.operands, spans.value_size, problem.softmax.sinks, scratch)


@device_function
def _find(task: Task, begin: int, count: int, problem: Problem, scratch: Scratch) -> None:
    """Note where up to 64 of the task's keys and values lie."""
    operands, spans = problem.operands, problem.spans
    selected = operands.selected
    kv_head = task.head // (operands.heads // spans.kv_heads)
    if selected.positions != 0:
        places = selected.positions + (task.row * selected.top_k + begin) * 4
        find_selected(places, task.table, spans, kv_head, count, scratch)
    else:
        find_rows(task.table, spans, kv_head, begin, count, scratch)


@specialized(lambda kernels: _by_copies if kernels.kind.is_quantised else _few_in_place)
def _over_block(
    kernels: AttentionKernels,
    task: Task,
    begin: int,
    count: int,
    problem: Problem,
    scratch: Scratch,
) -> None:
    """Take in the keys and values of a block."""
    raise NotImplementedError("exists in Numba functions only")


def _few_in_place(
    kernels: AttentionKernels,
    task: Task,
    begin: int,
    count: int,
    problem: Problem,
    scratch: Scratch,
) -> None:
    """A few queries read keys and values where they lie, if vectors hold nothing else."""
    spans, queries = problem.spans, task.num_queries
    if not reads_in_place(queries, spans.key_size, spans.value_size):
        _by_blocks(kernels, task, begin, count, problem, scratch)
        return
    _find(task, begin, count, problem, scratch)
    score_in_place(kernels, Extent(queries, spans.key_size, count), scratch)
    soften(begin, count, task, problem.softmax, scratch)
    add_values_in_place(kernels, Extent(queries, spans.value_size, count), scratch)


def _choose_product(kernels: AttentionKernels) -> Any:
    if kernels.by_tiles:
        return _by_tiles
    return _by_pairs if kernels.by_pairs else _by_copies


@specialized(_choose_product)
def _by_blocks(
    kernels: AttentionKernels,
    task: Task,
    begin: int,
    count: int,
    problem: Problem,
    scratch: Scratch,
) -> None:
    """Many queries share copies of keys and values, as products read weights."""
    raise NotImplementedError("exists in Numba functions only")


def _by_copies(
    kernels: AttentionKernels,
    task: Task,
    begin: int,
    count: int,
    problem: Problem,
    scratch: Scratch,
) -> None:
    kind, spans, queries = kernels.kind, problem.spans, task.num_queries
    _find(task, begin, count, problem, scratch)
    load_keys(kind, spans, count, scratch)
    score(kernels, Extent(queries, spans.key_size, count), scratch)
    soften(begin, count, task, problem.softmax, scratch)
    load_values(kind, spans, count, scratch)
    add_values(kernels, Extent(queries, spans.value_size, count), scratch, is_first=False)


def _by_pairs(
    kernels: AttentionKernels,
    task: Task,
    begin: int,
    count: int,
    problem: Problem,
    scratch: Scratch,
) -> None:
    spans, queries = problem.spans, task.num_queries
    _find(task, begin, count, problem, scratch)
    load_key_pairs(kernels.kind, spans, count, scratch.rows, scratch.keys)
    score(kernels, Extent(queries, spans.key_size, count), scratch)
    if sees_all(begin, count, task, problem.softmax):
        weigh_as_pairs(queries, count, scratch)
    else:
        soften(begin, count, task, problem.softmax, scratch)
        narrow_weights(queries, scratch)
    load_value_pairs(kernels.kind, spans, count, scratch.rows, scratch.values)
    extent = Extent(queries, spans.value_size, count)
    add_values(kernels, extent, scratch, is_first=begin == task.begin)


def _by_tiles(
    kernels: AttentionKernels,
    task: Task,
    begin: int,
    count: int,
    problem: Problem,
    scratch: Scratch,
) -> None:
    for first in range(0, count, PANEL):
        some = smaller(PANEL, count - first)
        _find(task, begin + first, some, problem, scratch)
        load_panel(kernels, problem.spans, first, some, scratch)
    attend_tiles(kernels, Block(begin, count), task, problem.spans, problem.softmax, scratch)


@device_function
def _start(kernels: AttentionKernels, task: Task, problem: Problem, scratch: Scratch) -> None:
    """Copy the queries, scaled, and clear what is accumulated: of pairs, the first block does."""
    operands, spans, scale = problem.operands, problem.spans, problem.softmax.scale
    size = spans.key_size
    width = (spans.value_size + PANEL - 1) // PANEL * PANEL
    first, into = operands.query + task.head * size * 4, scratch.queries
    in_place = reads_in_place(task.num_queries, size, spans.value_size)
    by_pairs = kernels.by_pairs and not in_place
    for row in range(task.row, task.row + task.num_queries // task.num_heads):
        for head in range(task.num_heads):
            source = first + row * operands.query_stride + head * size * 4
            into = copy_query(kernels, source, size, scale, into, by_pairs)
    for n in range(task.num_queries):
        write(FLOAT32, scratch.peak, n, NOTHING_SEEN)
        write(FLOAT32, scratch.total, n, _ZERO)
    if not by_pairs:
        for i in range(task.num_queries * width):
            write(FLOAT32, scratch.sums, i, _ZERO)


@device_function
def _finish(task: Task, operands: Operands, size: int, sinks: int, scratch: Scratch) -> None:
    """Divide the sums by the totals, into `out`; or write the task's parts, undivided."""
    width = (size + PANEL - 1) // PANEL * STEP_BYTES
    row, head, end = 0, task.head, task.head + task.num_heads
    for n in range(task.num_queries):
        if head == end:
            row, head = row + 1, task.head
        total, peak = read(FLOAT32, scratch.total, n), read(FLOAT32, scratch.peak, n)
        if task.part >= 0:
            record = (task.part + row) * operands.heads + head
            out = operands.parts + record * (size + PART_NUMBERS) * 4
            write(FLOAT32, out, 0, peak)
            write(FLOAT32, out, 1, total)
            out += PART_NUMBERS * 4
            factor = _ONE
        else:
            out = operands.out + ((task.row + row) * operands.heads + head) * size * 4
            sink = _sink(sinks, head)
            factor = _ONE / (total + (exp(sink - peak) if sinks != 0 else _ZERO))
        sums = scratch.sums + n * width
        for e in range(size):
            write(FLOAT32, out, e, read(FLOAT32, sums, e) * factor)
        head += 1
