"""Recorded attention of the CPU backend: appends to the KV cache, and reads of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from spaninfer_kernels_cpu import (
    PART_NUMBERS,
    LayerCache,
    Scores,
    append_call,
    attend_calls,
)
from spaninfer_op_reference import alibi_slopes, to_bfloat16

from spaninfer_engine.backends.cpu.kv_cache import cached_in
from spaninfer_engine.backends.cpu.recorder import Recorder, Value
from spaninfer_engine.backends.cpu.script import Values, Write
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.table import AlibiKind, Pack


def append(operation: Operation, _pack: Pack) -> Write:
    """Keys, and values unless they lie in the keys, written to the spans of a layer."""

    def write(to: Recorder, *inputs: Value) -> Values:
        spans = _spans(operation, to)
        for value, into in zip(inputs, (spans.keys, spans.values), strict=False):
            to.calls.append(append_call(value.rows, into, spans))
        return ()

    return write


def attend(operation: Operation, _pack: Pack) -> Write:
    """What queries read from the spans of a layer."""
    constants: dict[str, Any] = dict(operation.constants)

    def write(to: Recorder, query: Value) -> Values:
        spans = _spans(operation, to)
        heads = query.shape[0]
        out = to.new(heads, spans.values.size, per_logit=False)
        scores = scores_of(heads, *(constants.get(name) for name in _SCORES))
        kv_heads = spans.keys.numbers.shape[2]
        plan = to.inputs.plan(
            heads // kv_heads,
            scores.window or 0,
            4 * heads * (spans.values.size + PART_NUMBERS),
        )
        to.calls += attend_calls(
            query.rows, heads=heads, spans=spans, plan=plan, scores=scores, out=out.rows
        )
        return (out,)

    return write


_SCORES = ("scale", "softcap", "window", "alibi")


@cache
def scores_of(
    heads: int,
    scale: float,
    softcap: float | None,
    window: int | None,
    alibi: AlibiKind | None,
) -> Scores:
    """Return the kernel's settings, the same for every step; checked once."""
    if alibi is None:
        return Scores(scale, softcap, window)
    slopes = alibi_slopes(heads)
    if alibi == "rounded":
        return Scores(scale, softcap, window, to_bfloat16(slopes), rounded=True)
    slopes = slopes * (scale if alibi == "scaled" else 1.0)
    return Scores(scale, softcap, window, slopes.astype(np.float32))


def _spans(operation: Operation, to: Recorder) -> LayerCache:
    group, layer = int(operation.number("group")), int(operation.number("layer"))
    keys, values = (cached_in(part[layer]) for part in to.caches[group])
    inputs = to.inputs
    return LayerCache(keys, values, *inputs.table(group), inputs.request, inputs.position)
