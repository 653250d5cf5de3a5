"""Recorded attention of the CPU backend: appends to the KV cache, and reads of it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
from spaninfer_kernels_cpu import (
    PART_NUMBERS,
    IndexQuery,
    KVArray,
    LayerCache,
    PlanKind,
    Scores,
    Selected,
    ahead_of,
    append_call,
    attend_calls,
    item_queries,
    reads_in_place,
    select_calls,
)
from spaninfer_op_reference import alibi_slopes, to_bfloat16

from spaninfer_engine.backends.cpu.kv_cache import cached_in
from spaninfer_engine.backends.cpu.recorder import Floats, Recorder, Value
from spaninfer_engine.backends.cpu.script import Values, Write
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.scoring import Scoring
from spaninfer_engine.ops.table import Pack

MAX_TEXT = 1 << 30  # tokens of a text: more than any


def append(operation: Operation, _pack: Pack) -> Write:
    """Keys, and values unless they lie in the keys, written to the spans of a layer."""

    def write(to: Recorder, *inputs: Value) -> Values:
        spans = _spans(operation, to)
        for value, into in zip(inputs, (spans.keys, spans.values), strict=False):
            to.calls.append(append_call(value.rows, into, spans))
        return ()

    return write


def attend(operation: Operation, pack: Pack, *, narrow: bool) -> Write:
    """Return attention of queries over the spans of a layer.

    With `narrow` the products of prompts may be of bfloat16, where decodes read keys in place and
    are as exact as without.
    """
    scoring = operation.scoring()
    sinks = pack(operation.weights, "wide") if operation.weights else None

    def write(to: Recorder, query: Value) -> Values:
        spans = _spans(operation, to)
        heads = query.shape[0]
        out = to.new(heads, spans.values.size, per_logit=False)
        group = heads // spans.keys.numbers.shape[2]
        is_exact = reads_in_place(group, spans.keys.size, spans.values.size)
        scores = replace(scores_of(heads, scoring), sinks=sinks, narrow=narrow and is_exact)
        queries = item_queries(spans, scores)
        kind = PlanKind(group, scoring.window or 0, chunked=scoring.chunked, queries=queries)
        plan = to.inputs.plan(kind, 4 * heads * (spans.values.size + PART_NUMBERS))
        to.calls += attend_calls(
            query.rows, heads=heads, spans=spans, plan=plan, scores=scores, out=out.rows
        )
        return (out,)

    return write


def select_keys(operation: Operation, _pack: Pack) -> Write:
    """The keys that tokens read; int32 in the memory of float32, which calls alone read."""
    wanted = int(operation.number("top_k"))

    def write(to: Recorder, query: Value, weights: Value) -> Values:
        spans, heads = _spans(operation, to), query.shape[0]
        top_k = min(wanted, math.prod(spans.keys.numbers.shape[:2]))  # no request has more
        selected = to.new(top_k, per_logit=False)
        index = IndexQuery(query.rows, weights.rows, heads)
        out = Selected(selected.rows.address, top_k)
        to.calls += select_calls(index, spans, to.inputs.selection(heads, top_k), out)
        return (selected,)

    return write


def attend_selected(operation: Operation, _pack: Pack) -> Write:
    """Return attention of queries over the keys that were selected for each."""
    scores = Scores(operation.number("scale"))

    def write(to: Recorder, query: Value, selected: Value) -> Values:
        heads, top_k = query.shape[0], selected.size
        spans = replace(_spans(operation, to), selected=Selected(selected.rows.address, top_k))
        out = to.new(heads, spans.values.size, per_logit=False)
        group = heads // spans.keys.numbers.shape[2]
        row_bytes = 4 * heads * (spans.values.size + PART_NUMBERS)
        plan = to.inputs.selected_plan(group, top_k, row_bytes)
        to.calls += attend_calls(
            query.rows, heads=heads, spans=spans, plan=plan, scores=scores, out=out.rows
        )
        return (out,)

    return write


def ragged(operation: Operation, pack: Pack, *, narrow: bool) -> Write:
    """Return attention among the tokens of each text, over keys and values as they were computed.

    With `narrow` its products may be of bfloat16.

    All texts together are as spans of which any row may be the first: a text's table has that
    one number, and what lies `i` rows behind it are its keys at position i.
    """
    scoring = operation.ragged_scoring()
    biases = pack(operation.weights, "wide") if operation.weights else None
    scores = Scores(
        scoring.scale,
        scoring.softcap,
        scoring.window,
        biases=biases,
        ahead=scoring.ahead,
        narrow=narrow,
    )

    def write(to: Recorder, query: Value, key: Value, value: Value) -> Values:
        heads = query.shape[0]
        out = to.new(heads, value.shape[1], per_logit=False)
        inputs = to.inputs
        runs = (*inputs.table(0), inputs.request, inputs.position)
        spans = LayerCache(
            KVArray(_as_spans(key)),
            KVArray(_as_spans(value)),
            *(inputs.windows() if scoring.in_windows else runs),
        )
        row_bytes = 4 * heads * (value.shape[1] + PART_NUMBERS)
        kind = PlanKind(
            heads // key.shape[0],
            scoring.window or 0,
            ahead_of(scores),
            queries=item_queries(spans, scores),
        )
        plan = inputs.plan(kind, row_bytes, in_windows=scoring.in_windows)
        to.calls += attend_calls(
            query.rows, heads=heads, spans=spans, plan=plan, scores=scores, out=out.rows
        )
        return (out,)

    return write


def _as_spans(value: Value) -> Floats:
    """[S L K D]: rows of heads as spans of a cache, each beginning a row behind the one before."""
    stride, (heads, size) = value.buffer.strides[0], value.shape
    rows = value.buffer[:, value.first : value.first + value.size]
    return np.lib.stride_tricks.as_strided(
        rows, (len(rows), MAX_TEXT, heads, size), (stride, stride, 4 * size, 4), writeable=False
    )


@cache
def scores_of(heads: int, scoring: Scoring) -> Scores:
    """Return the kernel's settings, the same for every step; checked once."""
    plain = Scores(scoring.scale, scoring.softcap, scoring.window, chunked=scoring.chunked)
    slopes = alibi_slopes(heads)
    match scoring.alibi:
        case None:
            return plain
        case "plain":
            return replace(plain, slopes=slopes.astype(np.float32))
        case "scaled":
            return replace(plain, slopes=(slopes * scoring.scale).astype(np.float32))
        case "rounded":
            return replace(plain, slopes=to_bfloat16(slopes), rounded=True)


def _spans(operation: Operation, to: Recorder) -> LayerCache:
    group, layer = int(operation.number("group")), int(operation.number("layer"))
    keys, values = (cached_in(part[layer]) for part in to.caches[group][:2])
    inputs = to.inputs
    return LayerCache(keys, values, *inputs.table(group), inputs.request, inputs.position)
