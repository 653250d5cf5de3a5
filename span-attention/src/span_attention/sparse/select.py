"""Selection of keys by an indexer: scores of all that a token sees, and the best of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from spaninfer_kernel_launch import (
    BEFORE_HOPPER,
    ArraySpec,
    Call,
    Derived,
    Gpu,
    Interned,
    Launch,
    NamedCalls,
    Operator,
    RenamedCall,
    Result,
    ShapeError,
    Step,
    check_dense,
    compile_variant,
    get_gpu,
    load,
    match,
    new_results,
    prepared_once,
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
    gpu: Gpu
    _score: Call[ScoreArguments]

    @property
    def select(self) -> tuple[NamedCalls, dict[str, int]]:
        """The selection for all tokens, as many at once as scores have room for, and constants."""
        calls: list[RenamedCall] = []
        derived: dict[str, Derived] = {"key_map": ("keys", partial(_key_map, self))}
        constants = {
            "stride": score_stride(self.most),
            "span_shift": self.layout.span_len.bit_length() - 1,
            "box_tokens": self.box_tokens,
            "k": self.k,
        }
        for first in range(0, self.tokens, self.at_once):
            count = min(self.at_once, self.tokens - first)
            own = {name: f"{name} from {first}" for name in _OF_SOME}
            call, held = _select_for(count, self.most, self.gpu.index)
            if self.k < self.most:  # else all that a token sees are selected
                calls.append((self._score, own))
            calls.append((call, own))
            for name, of, size in self._of_tokens:
                derived[own[name]] = of, first * size
            derived[own["query_map"]] = "query", partial(_query_map, self, first, count)
            constants |= {own["tokens"]: count, own["most_held"]: held}
        return NamedCalls(tuple(calls), derived), constants

    @property
    def box_tokens(self) -> int:
        """Tokens of one TMA copy: those of a span, or of a block if spans are longer."""
        return min(self.layout.span_len, BLOCK)

    @property
    def _of_tokens(self) -> tuple[tuple[str, str, int], ...]:
        """Addresses that kernels are given, the arrays they lie in, and bytes of a token there."""
        lists = [(name, name, 4) for name in ("table_rows", "lengths")]
        return ("selected", "out", 4 * self.k), ("weights", "weights", 4 * self.tile.heads), *lists


_OF_SOME = (
    *("selected", "weights", "table_rows", "lengths"),
    *("query_map", "tokens", "most_held"),
)
"""What launches of some of the tokens have of their own."""


@lru_cache(maxsize=4096)
def _key_map(kernel: PreparedSelection, keys: int) -> bytes:
    """Return the map of a layer's keys at this address."""
    return key_map(keys, kernel.layout, kernel.dtype, kernel.box_tokens)


@lru_cache(maxsize=4096)
def _query_map(kernel: PreparedSelection, first: int, count: int, query: int) -> bytes:
    """Return the map of the lines of `count` tokens from the `first` one of the query."""
    tile = kernel.tile
    at = query + 2 * first * tile.heads * INDEX_SIZE
    return line_map(at, kernel.dtype, count * tile.heads, INDEX_SIZE, tile.lines)


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
    arrays = query, weights, readers.span_tables, readers.table_rows, readers.lengths, out
    options = spans.interned_layout, top_k, readers.one_sequence
    new = _select_keys.start(options, arrays, spans.places[:1], stream)
    return new[0] if out is None else out


def _prepare_call(
    options: tuple[Interned[SpanLayout], int, bool], given: dict[str, ArraySpec]
) -> Step:
    """Return the selection of arrays with these specs.

    Options are the layout of keys, `top_k`, and if all tokens are of one sequence.
    """
    interned_layout, top_k, one_sequence = options
    layout = interned_layout.value
    query, weights = view_at(given["query"]), view_at(given["weights"])
    readers = given["span_tables"], given["table_rows"], given["lengths"]
    tokens, columns, table_stride, gpu = check_readers(readers)
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
    new = new_results(given, gpu, ("out", (tokens, k), np.int32, 4))
    if not tokens:
        return Step(gpu, NamedCalls(), new)
    tile = ScoreTile(heads, TOKENS_TOGETHER if one_sequence and tokens > 1 else 1)
    at_once = min(tokens, tile.rows_at_once(score_stride(most)))
    score = _score_for(dtype, tile, gpu.index)
    prepared = PreparedSelection(dtype, layout, tile, tokens, at_once, most, k, gpu, score)
    calls, constants = prepared.select
    scores: Result = ("scores", (at_once, score_stride(most)), np.float32, 16)
    return Step(gpu, calls, new, (scores,), constants | {"table_stride": table_stride})


_select_keys = Operator(
    "query weights span_tables table_rows lengths out", _prepare_call, numbers="keys"
)


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
