"""Attention over spans by the definitions, slice by slice."""

from __future__ import annotations

import numpy as np
import spaninfer_op_reference as definition

from spaninfer_engine.backends.host.tensors import Array
from spaninfer_engine.ops.scoring import Scoring
from spaninfer_engine.ops.step import AttentionMetadata, Step
from spaninfer_engine.step.batch import Run


def attend_by_definition(
    step: Step[Array],
    query: Array,
    group: int,
    layer: int,
    scoring: Scoring,
    sinks: Array | None,
) -> Array:
    """[T H E]: request by request, as spaninfer_op_reference says."""
    metadata: AttentionMetadata[Array] = step.attention
    keys, values = (part[layer] for part in metadata.caches[group][:2])
    slopes = definition.alibi_slopes(query.shape[1])
    until = metadata.until
    out = np.empty((*query.shape[:2], values.shape[-1]), query.dtype)
    for run in metadata.batch.runs():
        first, spans = _spans_of(
            run, metadata.tables[group][run.row], keys.shape[1], scoring.window
        )
        positions = np.arange(first, run.stop)
        out[run.first : run.last] = definition.attend(
            query[run.first : run.last],
            definition.gather_spans(keys, spans, len(positions)),
            definition.gather_spans(values, spans, len(positions)),
            np.arange(run.start, run.stop),
            positions,
            scale=scoring.scale,
            softcap=scoring.softcap,
            window=scoring.window,
            chunked=scoring.chunked,
            bias=_bias(scoring, slopes, positions),
            sinks=sinks,
            until=None if until is None else until[run.first : run.last],
        )
    return out


def select_by_definition(
    step: Step[Array], query: Array, weights: Array, group: int, layer: int, top_k: int
) -> Array:
    """[T k]: request by request, as spaninfer_op_reference says."""
    metadata: AttentionMetadata[Array] = step.attention
    batch, keys = metadata.batch, metadata.caches[group].keys[layer]
    out = np.full((len(query), min(top_k, batch.max_seq_len)), -1, np.int32)
    for run in batch.runs():
        _, spans = _spans_of(run, metadata.tables[group][run.row], keys.shape[1], None)
        rows = slice(run.first, run.last)
        selected = definition.select_keys(
            query[rows],
            weights[rows],
            definition.gather_spans(keys, spans, run.stop)[:, 0],
            np.arange(run.start, run.stop),
            top_k,
        )
        out[rows, : selected.shape[1]] = selected
    return out


def attend_selected_by_definition(
    step: Step[Array], query: Array, selected: Array, group: int, layer: int, scale: float
) -> Array:
    """[T H E]: request by request, as spaninfer_op_reference says."""
    metadata: AttentionMetadata[Array] = step.attention
    keys, values = (part[layer] for part in metadata.caches[group][:2])
    out = np.empty((*query.shape[:2], values.shape[-1]), query.dtype)
    for run in metadata.batch.runs():
        _, spans = _spans_of(run, metadata.tables[group][run.row], keys.shape[1], None)
        rows = slice(run.first, run.last)
        out[rows] = definition.attend_selected(
            query[rows],
            definition.gather_spans(keys, spans, run.stop),
            definition.gather_spans(values, spans, run.stop),
            selected[rows],
            scale=scale,
        )
    return out


def _spans_of(run: Run, table: Array, span_len: int, window: int | None) -> tuple[int, Array]:
    """Return the first position of the spans that a run's rows see, and their numbers.

    Spans behind the window may hold another request's keys by now.
    """
    low = 0 if window is None else max(0, run.start - window + 1) // span_len
    return low * span_len, table[low : -(-run.stop // span_len)]


def _bias(scoring: Scoring, slopes: Array, positions: Array) -> Array | None:
    """[H N]: the ALiBi bias of key positions."""
    match scoring.alibi:
        case None:
            return None
        case "rounded":
            return definition.falcon_alibi_bias(slopes, positions, scoring.scale)
        case "scaled":
            return definition.alibi_bias(slopes, positions) * scoring.scale
        case "plain":
            return definition.alibi_bias(slopes, positions)
