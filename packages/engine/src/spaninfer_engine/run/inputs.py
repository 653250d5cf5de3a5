"""From a plan to the context of a step: a few index operations over all slices at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.ops.step import A, SpanCache, Step
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.plan import Slice
from spaninfer_engine.run.requests import Requests
from spaninfer_engine.run.rotary import Rotary

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Columns:
    """The slices of a step, one array per field."""

    starts: Ints
    stops: Ints
    logits_from: Ints
    rope_len: Ints
    request: Ints  # row in Requests

    @staticmethod
    def of(slices: Sequence[Slice], requests: Requests) -> _Columns:
        ids, starts, stops, logits_from, _, rope_len = zip(*slices, strict=True)
        return _Columns(
            np.array(starts, np.int32),
            np.array(stops, np.int32),
            np.array(logits_from, np.int32),
            np.array(rope_len, np.int32),
            requests.rows(ids),
        )


def build(
    slices: Sequence[Slice],
    requests: Requests,
    rotaries: Sequence[Rotary],
    ops: Ops[A],
    caches: tuple[SpanCache[A], ...],
) -> Step[A]:
    """Return the context of a step that computes these slices, in their order."""
    columns = _Columns.of(slices, requests)
    bounds, position = _ranges(columns.starts, columns.stops)
    lengths = columns.stops - columns.starts
    request = np.repeat(columns.request, lengths)
    axes = max((rotary.num_axes for rotary in rotaries), default=1)
    places = np.broadcast_to(position, (axes, len(position)))
    planned_len = np.repeat(columns.rope_len, lengths)
    step: Step[A] = Step(
        token_ids=ops.from_host(requests.tokens[request, position]),
        position=position,
        request=request,
        positions=ops.from_host(places),
        tables=requests.tables,
        bounds=bounds,
        caches=caches,
        written=_written(position, request, requests, ops),
        rotations=tuple(rotary.rotation(places, position, planned_len, ops) for rotary in rotaries),
        wanted=ops.from_host(_wanted(columns, bounds)),
    )
    return replace(step, plan=ops.prepare(step))


def _written(
    position: Ints, request: Ints, requests: Requests, ops: Ops[A]
) -> tuple[tuple[A, A], ...]:
    """Return, per cache group, the span [T] and the place in it [T] that each row writes to."""
    index, place = np.divmod(position, np.int32(requests.span_len))
    at = ops.from_host(place)
    return tuple((ops.from_host(table[request, index]), at) for table in requests.tables)


def _ranges(starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """Return where each range begins in their concatenation [R + 1], and the concatenation."""
    lengths = stops - starts
    if (lengths == 1).all():  # decodes only, the step whose cost counts
        return np.arange(len(starts) + 1, dtype=np.int32), starts
    bounds = np.zeros(len(starts) + 1, np.int32)
    np.cumsum(lengths, out=bounds[1:])
    return bounds, np.arange(bounds[-1], dtype=np.int32) + np.repeat(starts - bounds[:-1], lengths)


def _wanted(columns: _Columns, bounds: Ints) -> Ints:
    """Return the rows of positions [logits_from, stop) of every slice."""
    ahead = bounds[1:] - columns.stops  # row = position + ahead
    return _ranges(columns.logits_from + ahead, columns.stops + ahead)[1]
