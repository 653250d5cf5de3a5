"""The selection of keys for sparse attention as calls."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.attention.attend_block import (
    Extent,
    Scratch,
    find_rows,
    load_keys,
    scratch_at,
)
from spaninfer_kernels_cpu.attention.attend_call import LayerCache, Selected, demand_kind
from spaninfer_kernels_cpu.attention.attend_gemm import score
from spaninfer_kernels_cpu.attention.attention_kernels import AttentionKernels
from spaninfer_kernels_cpu.attention.attention_plan import (
    ITEM_NUMBERS,
    MAX_QUERIES,
    PlanKind,
    plan_attention,
)
from spaninfer_kernels_cpu.attention.select_kernel import DIGITS, add_scores, select
from spaninfer_kernels_cpu.attention.spans import CacheArrays, StridedArray, strides_of
from spaninfer_kernels_cpu.codegen.arguments import Arguments, Indirect
from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import (
    FLOAT32,
    Element,
    read_index,
    read_int64,
    smaller,
    write,
    write_index,
)
from spaninfer_kernels_cpu.codegen.isa_level import active_level
from spaninfer_kernels_cpu.codegen.kernel import Kernel, variants
from spaninfer_kernels_cpu.errors import ShapeError, demand_size
from spaninfer_kernels_cpu.gemm.micro_kernel_choice import micro_kernels
from spaninfer_kernels_cpu.quantisation.layout import PANEL, Format
from spaninfer_kernels_cpu.runtime.call import MAX_SIZE, Call, Matrix, row_at
from spaninfer_kernels_cpu.runtime.scratch_pool import acquire, give_back, scratch_pool

Ints = NDArray[np.int32]

_LINE = 16  # scores of a cache line


@dataclass(frozen=True, slots=True)
class SelectionPlan:
    """The division of a step's scores into tasks (`plan_selection`).

    Which of the step's counts is that of its items; items[N 9], and memory for scores.
    """

    count: int
    items: Indirect
    scores: Indirect


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """The indexer's query[T H D] and weights[T H] of every token."""

    query: Matrix
    weights: Matrix
    heads: int


def plan_selection(
    request: Ints, position: Ints, heads: int, top_k: int
) -> tuple[Ints, NDArray[np.uint8]]:
    """Return the items of rows with request[T] and position[T], and memory for their scores.

    It begins with the place of every row's scores in it (int64); rows that see no more than `top_k`
    keys have none, because all of these are selected.
    """
    items, _ = plan_attention(request, position, PlanKind(heads))
    seen = position.astype(np.int64) + 1
    room = np.where(seen > top_k, (seen + _LINE - 1) // _LINE * _LINE, 0) * 4
    ends = 8 * len(position) + np.cumsum(room)
    memory = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    memory[: 8 * len(position)].view(np.int64)[:] = ends - room
    return items, memory


@dataclass(frozen=True, slots=True)
class _SelectArguments(Arguments):
    query: Matrix
    weights: Matrix
    heads: int
    out: int
    top_k: int
    items: Indirect
    scores: Indirect
    tables: Indirect
    table_len: Indirect
    position: Indirect
    keys: StridedArray
    key_scales: StridedArray
    span_len: int
    key_size: int
    scratch: int


def select_calls(
    index: IndexQuery, spans: LayerCache, plan: SelectionPlan, out: Selected
) -> list[Call]:
    """Return the calls that write which keys each token reads, in ascending order, then -1.

    `spans` are the indexer's keys, one head of them. See spaninfer_op_reference.select_keys. The
    first call writes scores, the second selects. ShapeError for keys of several heads, and
    SizeError for no heads or an impossible `top_k`.
    """
    _, span_len, kv_heads, _ = spans.keys.numbers.shape
    if kv_heads != 1:
        raise ShapeError(f"keys have {kv_heads} heads; those of an indexer have one")
    demand_size("heads", index.heads, 1, MAX_SIZE)
    demand_size("top_k", out.top_k, 1, MAX_SIZE)
    keys = spans.keys
    arguments = _SelectArguments(
        query=index.query,
        weights=index.weights,
        heads=index.heads,
        out=out.positions,
        top_k=out.top_k,
        items=plan.items,
        scores=plan.scores,
        tables=spans.tables,
        table_len=spans.table_len,
        position=spans.position,
        keys=keys.place,
        key_scales=keys.scales_place,
        span_len=span_len,
        key_size=keys.size,
        scratch=scratch_pool(scratch_at(0, keys.size, 1)[1]),
    )
    return [
        Call(_score_kernel(keys.kind), arguments, 1, 1, plan.count),
        Call(_select, arguments, 1, 1),
    ]


@variants
def _score_kernel(kind: Element) -> Kernel:
    demand_kind(kind)
    kernels = AttentionKernels(
        kind, *micro_kernels(Format("float32"), rounded=False, level=active_level())
    )

    def score_keys(arguments: _SelectArguments, tokens: int, task: int) -> None:  # noqa: ARG001
        item = arguments.items + task * ITEM_NUMBERS * 4
        first, stop = read_index(item, 0), read_index(item, 1)
        if read_index(arguments.position, stop - 1) < arguments.top_k:
            return
        memory = acquire(arguments.scratch, task)
        scratch, _ = scratch_at(memory, arguments.key_size, 1)
        spans = _key_arrays(arguments)
        table = arguments.tables + read_index(item, 2) * arguments.table_len * 4
        begin, end = read_index(item, 4), read_index(item, 5)
        for start in range(begin, end, PANEL):
            count = smaller(PANEL, end - start)
            find_rows(table, spans, 0, start, count, scratch)
            load_keys(kernels.kind, spans, count, scratch)
            for row in range(first, stop):
                _score_row(kernels, arguments, row, start, count, scratch)
        give_back(memory)

    return score_keys


@device_function
def _score_row(
    kernels: AttentionKernels,
    arguments: _SelectArguments,
    row: int,
    start: int,
    count: int,
    scratch: Scratch,
) -> None:
    """Write the scores of a row and of the keys of a block, as far as it sees them."""
    seen = read_index(arguments.position, row) + 1
    if seen <= arguments.top_k:
        return
    count = smaller(count, seen - start)
    size = arguments.key_size
    out = arguments.scores + read_int64(arguments.scores, row) + start * 4
    for j in range(count):
        write(FLOAT32, out, j, np.float32(0))
    for first in range(0, arguments.heads, MAX_QUERIES):
        heads = smaller(MAX_QUERIES, arguments.heads - first)
        queries = row_at(arguments.query, row) + first * size * 4
        score(kernels, Extent(heads, size, count), _with_queries(scratch, queries))
        weights = row_at(arguments.weights, row) + first * 4
        add_scores(scratch.scores, weights, heads, out, count)


@device_function
def _with_queries(scratch: Scratch, queries: int) -> Scratch:
    """Return the scratch space with queries that lie where they were computed."""
    return Scratch(
        queries,
        scratch.scores,
        scratch.sums,
        scratch.peak,
        scratch.total,
        scratch.kept,
        scratch.keys,
        scratch.values,
        scratch.grid,
        scratch.rows,
    )


@device_function
def _key_arrays(arguments: _SelectArguments) -> CacheArrays:
    keys, scales = strides_of(arguments.keys), strides_of(arguments.key_scales)
    size = arguments.key_size
    return CacheArrays(keys, keys, scales, scales, arguments.span_len, 1, size, size, size)


def _select(arguments: _SelectArguments, tokens: int, task: int) -> None:  # noqa: ARG001
    top_k, seen = arguments.top_k, read_index(arguments.position, task) + 1
    out = arguments.out + task * top_k * 4
    if seen > top_k:
        scores = floats_at(arguments.scores + read_int64(arguments.scores, task), seen)
        select(scores, np.empty(DIGITS, np.int32), numbers_at(out, top_k, np.int32))
        return
    for place in range(top_k):
        write_index(out, place, place if place < seen else -1)
