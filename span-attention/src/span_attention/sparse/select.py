"""Selection of keys by an indexer: scores of all that a token sees, and the best of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from spaninfer_kernel_launch import (
    BEFORE_HOPPER,
    ArraySpec,
    Call,
    Gpu,
    Launch,
    Result,
    ShapeError,
    allocator,
    check_dense,
    check_results,
    compile_variant,
    get_gpu,
    inspect_array,
    load,
    match,
    pointer_of,
    prepared_once,
    stream_handle,
    user_cache,
    view_at,
)

from span_attention.layout import SpanLayout
from span_attention.operands import check_device
from span_attention.published import OWN
from span_attention.span_map import key_map, line_map
from span_attention.spans import Spans
from span_attention.sparse.kernels import (
    ARCHITECTURE,
    SELECT,
    SPARSE_SCORE,
    SPARSE_SELECT,
    ScoreArguments,
    SelectArguments,
    score_variant,
)
from span_attention.sparse.readers import Readers, check_readers
from span_attention.sparse.tuning import (
    BLOCK,
    HEADS,
    INDEX_SIZE,
    SCORE_THREADS,
    SELECT_BYTES,
    SELECT_THREADS,
    TOKENS_TOGETHER,
    ScoreTile,
    blocks_per_row,
    held_scores,
    score_stride,
)


class _Places(NamedTuple):
    """Addresses of a selection's arrays, each beginning with the same token."""

    selected: int
    query: int
    weights: int
    rows: int
    lengths: int


@dataclass(frozen=True, slots=True, eq=False)
class PreparedSelection:
    """The selection of the best `k` of at most `most` keys by that many tokens, of which one launch
    takes `at_once`.
    """

    dtype: str
    layout: SpanLayout
    tile: ScoreTile
    tokens: int
    at_once: int
    most: int
    k: int
    table_stride: int
    gpu: Gpu
    _score: Call[ScoreArguments]

    def launch(self, handle: int, at: _Places, spans: Spans, tables: int, scores: int) -> None:
        """Select for all tokens, as many at once as the scores have room for."""
        for first in range(0, self.tokens, self.at_once):
            count = min(self.at_once, self.tokens - first)
            line = first * self.tile.heads
            self._launch_part(
                handle,
                count,
                spans,
                tables,
                scores,
                _Places(
                    at.selected + 4 * first * self.k,
                    at.query + 2 * line * INDEX_SIZE,
                    at.weights + 4 * line,
                    at.rows + 4 * first,
                    at.lengths + 4 * first,
                ),
            )

    def _launch_part(
        self, handle: int, count: int, spans: Spans, tables: int, scores: int, at: _Places
    ) -> None:
        stride, lines = score_stride(self.most), count * self.tile.heads
        box_tokens = min(self.layout.span_len, BLOCK)
        arguments = ScoreArguments(
            scores=scores,
            stride=stride,
            query_map=line_map(at.query, self.dtype, lines, INDEX_SIZE, self.tile.lines),
            key_map=key_map(spans, self.dtype, box_tokens),
            weights=at.weights,
            span_tables=tables,
            table_stride=self.table_stride,
            table_rows=at.rows,
            lengths=at.lengths,
            tokens=count,
            span_shift=self.layout.span_len.bit_length() - 1,
            box_tokens=box_tokens,
        )
        if self.k < self.most:  # else all that a token sees are selected
            self._score(handle, arguments)
        select, held = _select_for(count, self.most, self.gpu.index)
        select(handle, SelectArguments(at.selected, scores, stride, at.lengths, self.k, held))


def has_selection(dtype: str, layout: SpanLayout, heads: int, arch: str) -> bool:
    """Return True on Hopper for keys of one head of 128 16-bit floats, and 16, 32 or 64 heads of
    the indexer.
    """
    return (
        arch == ARCHITECTURE
        and layout.format is OWN.get(dtype)
        and (layout.kv_heads, layout.key_size) == (1, INDEX_SIZE)
        and heads in HEADS
    )


def select_keys(
    query: object,
    weights: object,
    spans: Spans,
    readers: Readers,
    *,
    top_k: int,
    out: Any = None,
    stream: object = None,
) -> Any:
    """Return the positions[T k] int32 of the keys that each token reads, ascending, then -1.

    Of the keys that a token sees, k have the largest sums over heads of weights[T H] * relu(q . k),
    of query[T H 128], 16-bit floats, and weights, float32; both dense. Of equal sums the lower
    position is selected; NaN is less than any number. k is top_k, or what the span tables have room
    for where that is less. The result depends on a token's own keys alone, to the last bit.

    Raises ShapeError, DTypeError or DeviceError for arrays that do not fit, and for sizes and GPUs
    other than those of `has_selection`.
    """
    (q, q_spec), (w, w_spec) = inspect_array(query), inspect_array(weights)
    given = (readers.span_tables, readers.table_rows, readers.lengths)
    (tables, rows, lengths), specs = zip(*map(inspect_array, given), strict=True)
    to, out_spec = inspect_array(out)
    prepared, allocate, allocate_scores = _prepared_for(
        spans.layout, (q_spec, w_spec, *specs), out_spec, top_k, readers.one_sequence
    )
    handle = stream_handle(stream, query)
    if out is None:
        (out,) = allocate(handle)
        to = pointer_of(out)
    if prepared is not None:
        (scores,) = allocate_scores(handle)
        places = _Places(to, q, w, rows, lengths)
        prepared.launch(handle, places, spans, tables, pointer_of(scores))
    return out


@prepared_once(1024)
def _prepared_for(
    layout: SpanLayout,
    specs: tuple[ArraySpec, ...],
    out: ArraySpec,
    top_k: int,
    one_sequence: bool,
) -> tuple[
    PreparedSelection | None,
    Callable[[int], tuple[Any, ...]],
    Callable[[int], tuple[Any, ...]],
]:
    """Return the selection of arrays with these specs, none of no token, and the allocators of its
    result and of its scores.
    """
    query, weights = map(view_at, specs[:2])
    tokens, columns, table_stride, gpu = check_readers(specs[2:])
    heads = match(query=(query, f"{tokens} H {INDEX_SIZE}"))["H"]
    match(weights=(weights, f"{tokens} {heads}"))
    check_dense(query.dtype, query=query)
    check_dense(np.float32, weights=weights)
    check_device(gpu, query=query, weights=weights)
    dtype = query.dtype.name
    if not has_selection(dtype, layout, heads, gpu.arch):
        raise ShapeError(
            f"{heads} heads of {dtype} over {layout.kv_heads} heads of {layout.key_size} "
            f"{layout.format.label} on {gpu.arch}; keys are selected on Hopper, by "
            f"{', '.join(map(str, HEADS))} heads, of keys of {INDEX_SIZE} 16-bit floats of the "
            "queries' type"
        )
    most = columns * layout.span_len
    k = min(top_k, most)
    if k < 1:
        raise ShapeError(f"top_k is {top_k}, and span_tables have room for {most}; at least 1")
    result: Result = ("out", (tokens, k), np.int32, 4)
    check_results((out,), gpu, result)
    allocate = allocator(specs[0], gpu, result)
    if not tokens:
        return None, allocate, allocate
    tile = ScoreTile(heads, TOKENS_TOGETHER if one_sequence and tokens > 1 else 1)
    at_once = min(tokens, tile.rows_at_once(score_stride(most)))
    prepared = PreparedSelection(
        dtype,
        layout,
        tile,
        tokens,
        at_once,
        most,
        k,
        table_stride,
        gpu,
        _score_for(dtype, tile, gpu.index),
    )
    scores: Result = ("scores", (at_once, score_stride(most)), np.float32, 16)
    return prepared, allocate, allocator(specs[0], gpu, scores)


def prepare_selection(dtype: str, heads: int, gpu: Gpu) -> None:
    """Compile and load the kernels that steps of any size need on `gpu`."""
    for tokens in (1, TOKENS_TOGETHER):
        _score_for(dtype, ScoreTile(heads, tokens), gpu.index)
    _select_for(1, BLOCK, gpu.index)


@prepared_once(64)
def _score_for(dtype: str, tile: ScoreTile, gpu_index: int) -> Call[ScoreArguments]:
    """Return the scores of such tiles, compiled or cached."""
    gpu = get_gpu(gpu_index)
    compiled = compile_variant(score_variant(dtype, tile), gpu.arch, user_cache())
    launch = Launch((gpu.sm_count, 1, 1), (SCORE_THREADS, 1, 1), tile.shared_bytes, overlaps=True)
    return Call(load(compiled, gpu, SPARSE_SCORE), launch)


@prepared_once(1024)
def _select_for(rows: int, most: int, gpu_index: int) -> tuple[Call[SelectArguments], int]:
    """Return the select of that many rows of at most `most` scores, and how many a block holds."""
    gpu = get_gpu(gpu_index)
    has_clusters = gpu.arch not in BEFORE_HOPPER
    blocks = blocks_per_row(rows, most, gpu.sm_count, has_clusters=has_clusters)
    held = held_scores(most, blocks, gpu.shared_bytes)
    compiled = compile_variant(SELECT, gpu.arch, user_cache())
    launch = Launch(
        (rows * blocks, 1, 1),
        (SELECT_THREADS, 1, 1),
        SELECT_BYTES + 4 * held,
        cluster=(blocks, 1, 1),
        overlaps=True,
    )
    return Call(load(compiled, gpu, SPARSE_SELECT), launch), held
