"""`attend`, attention of many queries over a KV cache that lies in spans.

A query at position p of its request attends the positions j <= p (with a window, those above
p - window; with `ahead`, those of its step behind it), which lie in the spans that the request's
table names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.attention.attend_call import (
    AttentionPlan,
    LayerCache,
    Selected,
    attend_calls,
    item_queries,
)
from spaninfer_kernels_cpu.attention.attend_kernel import PART_NUMBERS
from spaninfer_kernels_cpu.attention.attention_plan import PlanKind, plan_attention, plan_selected
from spaninfer_kernels_cpu.attention.checks import demand, demand_below
from spaninfer_kernels_cpu.attention.kv_array import KVArray
from spaninfer_kernels_cpu.attention.scores import Scores, ahead_of, check_heads
from spaninfer_kernels_cpu.errors import KernelError, ShapeError
from spaninfer_kernels_cpu.runtime.call import Matrix, Script
from spaninfer_kernels_cpu.runtime.thread_pool import shared_thread_pool

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Numbers = NDArray[Any]


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Request and position of every query row, and the spans of the requests.

    The same for all layers of a cache group; made once per step.
    tables[R M] int32: request r keeps positions [i L, (i + 1) L) in span tables[r, i]; entries for
    positions that no row attends are never read. request[T] int32 indexes `tables`; position[T]
    int32. Neighbouring rows of one request with rising positions share their reads. until[T] int32:
    the position behind the last that a row sees, at least the one behind its own; None: that one.
    selected[T k] int32: the positions that a row reads of those that it sees, in ascending order: k
    of them, or all and then anything; None: all of them.
    """

    tables: Ints
    request: Ints
    position: Ints
    until: Ints | None = None
    selected: Ints | None = None

    def __post_init__(self) -> None:
        """Raise unless types, shapes and numbers are as described."""
        demand("tables", self.tables, np.int32, "R M", ordered=2)
        demand("request", self.request, np.int32, "T", ordered=1)
        demand("position", self.position, np.int32, "T", ordered=1)
        if len(self.request) != len(self.position):
            raise ShapeError(
                f"request has {len(self.request)} rows, but position has {len(self.position)}"
            )
        demand_below("request", self.request, len(self.tables), "rows of tables")
        if len(self.position) and self.position.min() < 0:
            raise KernelError(f"position holds {self.position.min()}; allowed is 0 or more")
        if self.until is not None:
            self._check_until(self.until)
        if self.selected is not None:
            self._check_selected(self.selected)

    def _check_until(self, until: Ints) -> None:
        demand("until", until, np.int32, "T", ordered=1)
        if len(until) != len(self.position) or (until <= self.position).any():
            raise ShapeError("until must lie behind every position: give one number for each row")
        goes_on = (np.diff(self.request) == 0) & (np.diff(self.position) == 1)
        if (goes_on & (until[:-1] > self.position[1:]) & (until[1:] != until[:-1])).any():
            raise KernelError("until differs among rows that see each other; it must be the same")

    def _check_selected(self, selected: Ints) -> None:
        demand("selected", selected, np.int32, "T k", ordered=2)
        if self.until is not None:
            raise KernelError("rows read selected keys, or keys up to `until`; leave one out")
        rows, top_k = selected.shape
        if rows != len(self.position) or not top_k:
            raise ShapeError(f"selected has shape {selected.shape} for {len(self.position)} rows")
        known = np.arange(top_k) <= self.position[:, None]
        before = np.pad(selected, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
        if (known & ((selected <= before) | (selected > self.position[:, None]))).any():
            raise KernelError("selected must ascend from 0 on, to no more than a row's position")

    @property
    def ends(self) -> Ints:
        """The positions behind the last that rows see."""
        return self.position + 1 if self.until is None else self.until


def attend(
    query: Floats,
    keys: Numbers | KVArray,
    values: Numbers | KVArray,
    batch: AttentionBatch,
    scores: Scores,
    *,
    out: Floats,
) -> None:
    """Write the attention of query[T H D] over keys[S L K D], values[S L K E] into out[T H E].

    query and out are float32. Keys and values are float32, bfloat16 or float16, or `KVArray`s of
    quantised values q that stand for (q - zero) * scale: int8, or uint8 with two of 4 bits to a
    byte (D / 2 and E / 2 bytes, the even one in the low half), with scales[S L K 2] (float32: zero,
    scale). H is a multiple of K: query head h reads key/value head h // (H / K). Keys, values and
    scales may be strided on every axis but the last (all layers in one array; for MLA, values that
    are the first E columns of the keys). Works on every usable CPU. Raises KernelError for
    arguments that do not fit, and for spans and positions that there are not.
    """
    keys, values = (each if isinstance(each, KVArray) else KVArray(each) for each in (keys, values))
    words = np.zeros(6, np.int64)  # of the arrays below, which are known when all is checked
    tables, request, position, items_at, parts_at, table_len = (
        words.ctypes.data + words.itemsize * number for number in range(len(words))
    )
    selected = None
    if batch.selected is not None:
        selected = Selected(batch.selected.ctypes.data, batch.selected.shape[1])
    spans = LayerCache(keys, values, tables, table_len, request, position, selected)
    _check(query, keys, values, batch, scores, out)
    if not len(query):
        return
    _, span_len, kv_heads, _ = keys.numbers.shape
    heads = query.shape[1]
    check_tables(batch, len(keys.numbers), span_len, scores)
    if selected is not None:
        items, num_parts = plan_selected(batch.position, heads // kv_heads, selected.top_k)
    else:
        seen = scores.window or 0, ahead_of(scores), scores.chunked
        kind = PlanKind(heads // kv_heads, *seen, item_queries(spans, scores))
        items, num_parts = plan_attention(batch.request, batch.position, kind, batch.until)
    parts = np.empty(num_parts * heads * (values.size + PART_NUMBERS), np.float32)
    arrays = (batch.tables, batch.request, batch.position, items, parts)
    words[:] = *(array.ctypes.data for array in arrays), batch.tables.shape[1]
    calls = attend_calls(
        Matrix.of(query),
        heads=heads,
        spans=spans,
        plan=AttentionPlan(0, items_at, parts_at),
        scores=scores,
        out=Matrix.of(out),
    )
    shared_thread_pool().run(Script(calls if num_parts else calls[:1]), [len(items)])


def _check(
    query: Floats,
    keys: KVArray,
    values: KVArray,
    batch: AttentionBatch,
    scores: Scores,
    out: Floats,
) -> None:
    """Raise unless the arguments have the shapes that `attend` describes, and fit together."""
    demand("query", query, np.float32, "T H D", ordered=3)
    demand("out", out, np.float32, "T H E", ordered=3)
    if not out.flags.writeable:
        raise KernelError("out is read-only; give an array that can be written")
    num_rows, heads, key_size = query.shape
    kv_heads = keys.numbers.shape[2]
    if key_size != keys.size:
        raise ShapeError(f"query {query.shape} and keys {keys.numbers.shape} differ in D")
    check_heads(heads, kv_heads, scores)
    if out.shape != (num_rows, heads, values.size):
        raise ShapeError(f"out has shape {out.shape}, needs {(num_rows, heads, values.size)}")
    by_place = scores.window is not None or scores.slopes is not None or scores.biases is not None
    if batch.selected is not None and (by_place or scores.ahead != 0):
        raise KernelError("rows that read selected keys take no window, slopes, biases or ahead")
    if len(batch.position) != num_rows:
        raise ShapeError(f"query has {num_rows} rows, but position has {len(batch.position)}")


def check_tables(batch: AttentionBatch, num_spans: int, span_len: int, scores: Scores) -> None:
    """Raise unless every position that a row attends lies in one of the spans."""
    newest = int(batch.ends.max()) - 1
    num_entries = newest // span_len + 1
    if num_entries > batch.tables.shape[1]:
        raise KernelError(
            f"a row sees position {newest}; tables have {batch.tables.shape[1]} spans of "
            f"{span_len} tokens per request"
        )
    entries = batch.tables[:, :num_entries]
    if entries.min() >= 0 and entries.max() < num_spans:
        return
    last = (batch.ends - 1) // span_len  # some entries name no span; are they read?
    first = _oldest(batch.position, scores) // span_len
    readers = np.zeros((len(entries), num_entries + 1), np.int64)
    np.add.at(readers, (batch.request, first), 1)
    np.add.at(readers, (batch.request, last + 1), -1)
    is_read = readers.cumsum(axis=1)[:, :-1] > 0
    demand_below("tables", entries[is_read], num_spans, "spans")


def _oldest(position: Ints, scores: Scores) -> Ints:
    """Return the first positions that rows at these see."""
    if scores.window is None:
        return np.zeros_like(position)
    if scores.chunked:
        return position - position % scores.window
    return np.maximum(position - scores.window + 1, 0)
