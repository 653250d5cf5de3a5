"""Attention as calls: rows appended to spans, and what queries read from them. All is float32."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.attend_block import Softmax
from spaninfer_kernels_cpu.attend_kernel import (
    Attention,
    attend_task,
    head_tasks,
    merge_task,
    scratch_bytes,
)
from spaninfer_kernels_cpu.attention import Scores
from spaninfer_kernels_cpu.call import (
    NUMBERS_PER_TASK,
    Call,
    Place,
    Rows,
    address_of,
    held,
    real,
    rows_per_task,
    word,
)
from spaninfer_kernels_cpu.elements import FLOAT32
from spaninfer_kernels_cpu.in_kernel import in_kernel
from spaninfer_kernels_cpu.pointer import floats_at, numbers_at
from spaninfer_kernels_cpu.recipe import recipes
from spaninfer_kernels_cpu.spans import Place as SpanPlace
from spaninfer_kernels_cpu.spans import Spans as SpanPlaces
from spaninfer_kernels_cpu.tiers import chosen

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Plan:
    """How attention of a step is cut (`attention.plan_of`).

    Which of the step's counts is that of its items; places of items[N 8] and memory for parts.
    """

    count: int
    items: Place
    parts: Place


@dataclass(frozen=True, slots=True)
class Spans:
    """Where the keys and values of a layer lie, and how rows find them.

    keys[S L K D] and values[S L K E] are float32, strided but for the last axis. tables, request,
    position: places of the arrays of `attention.Rows`; table_len: place of their M.
    """

    keys: Floats
    values: Floats
    tables: Place
    table_len: Place
    request: Place
    position: Place


def append_call(x: Rows, into: Floats, spans: Spans) -> Call:
    """Write rows of heads into `into`, which is the keys or the values of `spans`."""
    _, span_len, heads, size = into.shape
    words = (
        *(x.address, x.stride, into.ctypes.data, *into.strides[:3], span_len, heads, size),
        *(spans.tables, spans.table_len, spans.request, spans.position),
    )
    return Call(address_of(_append), words, 1, rows_per_task(heads * size))


def _append(words: int, rows: int, task: int) -> None:
    span_len, heads, size = word(words, 6), word(words, 7), word(words, 8)
    tables, table_len = held(words, 9), word(word(words, 10), 0)
    request = numbers_at(held(words, 11), rows, np.int32)
    position = numbers_at(held(words, 12), rows, np.int32)
    some = max(1, NUMBERS_PER_TASK // (heads * size))
    for row in range(task * some, min(rows, (task + 1) * some)):
        at = int(position[row])
        table = numbers_at(tables + int(request[row]) * table_len * 4, table_len, np.int32)
        place = word(words, 2) + int(table[at // span_len]) * word(words, 3)
        place += at % span_len * word(words, 4)
        for head in range(heads):
            source = floats_at(word(words, 0) + row * word(words, 1) + head * size * 4, size)
            out = floats_at(place + head * word(words, 5), size)
            for i in range(size):
                out[i] = source[i]


def attend_calls(
    query: Rows, *, heads: int, spans: Spans, plan: Plan, scores: Scores, out: Rows
) -> list[Call]:
    """Return the calls that write what query[T H D] reads to out[T H E], whose rows have no gaps.

    The second joins what tasks read in chunks of a long context.
    """
    keys, values = spans.keys, spans.values
    slopes = 0 if scores.slopes is None else scores.slopes.ctypes.data
    sinks = 0 if scores.sinks is None else scores.sinks.ctypes.data
    words = (
        *(query.address, query.stride, out.address, heads),
        *(plan.items, plan.parts, spans.tables, spans.table_len),
        *(keys.ctypes.data, *keys.strides[:3], values.ctypes.data, *values.strides[:3]),
        *keys.shape[1:],
        *(values.shape[3], scores.window or 0, slopes, sinks),
        *(float(scores.scale), float(scores.softcap or 0)),
    )
    tasks = head_tasks(heads, keys.shape[2])
    return [
        Call(_attend_kernel(), words, tasks, 1, plan.count),
        Call(address_of(_merge), words, 1, 1, plan.count),
    ]


@cache
def _attend_kernel() -> int:
    one, many = recipes("float32", rounded=False, tier=chosen())

    def attend(words: int, rows: int, task: int) -> None:  # noqa: ARG001
        attention, spans = _attention(words), _span_places(words)
        units = head_tasks(attention.heads, spans.kv_heads)
        memory = np.empty(scratch_bytes(spans.key_size, spans.value_size), np.uint8)
        softmax = Softmax(
            real(words, 23), real(words, 24), word(words, 20), word(words, 21), word(words, 22)
        )
        number, unit, address = task // units, task % units, memory.ctypes.data
        attend_task(FLOAT32, one, many, number, unit, attention, spans, softmax, address)

    return address_of(attend)


def _merge(words: int, rows: int, task: int) -> None:  # noqa: ARG001
    merge_task(task, _attention(words), word(words, 19), word(words, 22))


@in_kernel
def _attention(words: int) -> Attention:
    return Attention(
        word(words, 0),
        word(words, 1),
        word(words, 2),
        word(words, 3),
        held(words, 4),
        0,
        held(words, 6),
        word(word(words, 7), 0) * 4,
        held(words, 5),
    )


@in_kernel
def _span_places(words: int) -> SpanPlaces:
    nothing = SpanPlace(0, 0, 0, 0)
    return SpanPlaces(
        SpanPlace(word(words, 8), word(words, 9), word(words, 10), word(words, 11)),
        SpanPlace(word(words, 12), word(words, 13), word(words, 14), word(words, 15)),
        nothing,
        nothing,
        word(words, 16),
        word(words, 17),
        word(words, 18),
        word(words, 19),
    )
