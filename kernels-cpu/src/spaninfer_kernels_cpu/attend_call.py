"""Attention as calls: rows appended to spans, and what queries read from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.append_kernel import store
from spaninfer_kernels_cpu.attend_block import Softmax
from spaninfer_kernels_cpu.attend_kernel import (
    Attention,
    attend_task,
    head_tasks,
    merge_task,
    scratch_bytes,
)
from spaninfer_kernels_cpu.attention import KINDS, Scores, check_heads, spans_of
from spaninfer_kernels_cpu.borrowed import borrow, give_back, pool_of
from spaninfer_kernels_cpu.call import (
    NUMBERS_PER_TASK,
    Call,
    Place,
    Rows,
    held,
    real,
    rows_per_task,
    word,
)
from spaninfer_kernels_cpu.elements import (
    ELEMENTS,
    FLOAT16,
    UINT4,
    Element,
    larger,
    read_index,
    smaller,
)
from spaninfer_kernels_cpu.in_kernel import in_kernel
from spaninfer_kernels_cpu.kernel import Kernel, variants
from spaninfer_kernels_cpu.recipe import recipes
from spaninfer_kernels_cpu.spans import Place as SpanPlace
from spaninfer_kernels_cpu.spans import Spans as SpanPlaces
from spaninfer_kernels_cpu.spans import place_of
from spaninfer_kernels_cpu.tiers import chosen, demand_half

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Plan:
    """How attention of a step is cut (`attention_plan.plan_of`).

    Which of the step's counts is that of its items; places of items[N 8] and memory for parts.
    """

    count: int
    items: Place
    parts: Place


@dataclass(frozen=True, slots=True)
class Cached:
    """Keys or values of a layer: numbers[S L K D] of a dtype of `attention.KINDS`, and of codes
    scales[S L K 2], a zero and a scale (float32); strided but for the last axis.
    """

    numbers: NDArray[Any]
    scales: Floats | None = None

    @property
    def kind(self) -> Element:
        """What the numbers are."""
        return KINDS[self.numbers.dtype]

    @property
    def size(self) -> int:
        """D: numbers of a head; two codes of 4 bits share a byte."""
        size: int = self.numbers.shape[3]
        return 2 * size if self.kind == UINT4 else size

    @property
    def words(self) -> tuple[int, ...]:
        """Addresses and strides, of numbers and of scales."""
        scales = (0, 0, 0, 0) if self.scales is None else _where(self.scales)
        return *_where(self.numbers), *scales


def _where(array: NDArray[Any]) -> tuple[int, ...]:
    return array.ctypes.data, *array.strides[:3]


@dataclass(frozen=True, slots=True)
class Spans:
    """Where the keys and values of a layer lie, and how rows find them.

    tables, request, position: places of the arrays of `attention.Rows`; table_len: place of their
    M.
    """

    keys: Cached
    values: Cached
    tables: Place
    table_len: Place
    request: Place
    position: Place

    def __post_init__(self) -> None:
        """Raise KernelError unless keys, values and their scales fit together."""
        keys, values = self.keys, self.values
        spans_of(keys.numbers, values.numbers, keys.scales, values.scales)


def append_call(x: Rows, into: Cached, spans: Spans) -> Call:
    """Write rows of heads (float32) into `into`, which is the keys or the values of `spans`."""
    _, span_len, heads, _ = into.numbers.shape
    words = (
        *(x.address, x.stride, *into.words, span_len, heads, into.size),
        *(spans.tables, spans.table_len, spans.request, spans.position),
    )
    return Call(_append_kernel(into.kind), words, 1, rows_per_task(heads * into.size))


@variants
def _append_kernel(kind: Element) -> Kernel:
    _demand(kind)

    def append(words: int, rows: int, task: int) -> None:
        span_len, heads, size = word(words, 10), word(words, 11), word(words, 12)
        tables, table_len = held(words, 13), word(word(words, 14), 0)
        request, position = held(words, 15), held(words, 16)
        some = larger(1, NUMBERS_PER_TASK // (heads * size))
        for row in range(task * some, smaller(rows, (task + 1) * some)):
            at = read_index(position, row)
            span = read_index(tables, read_index(request, row) * table_len + at // span_len)
            numbers, scales = _place_at(words, 2), _place_at(words, 6)
            for head in range(heads):
                source = word(words, 0) + row * word(words, 1) + head * size * 4
                into = place_of(numbers, span, at % span_len, head)
                store(kind, source, size, into, place_of(scales, span, at % span_len, head))

    return append


def attend_calls(
    query: Rows, *, heads: int, spans: Spans, plan: Plan, scores: Scores, out: Rows
) -> list[Call]:
    """Return the calls that write what query[T H D] reads to out[T H E], whose rows have no gaps.

    Both are float32. The second call joins what tasks read in chunks of a long context. Raises
    KernelError for heads that do not share keys evenly.
    """
    keys, values = spans.keys, spans.values
    check_heads(heads, keys.numbers.shape[2], scores)
    slopes = 0 if scores.slopes is None else scores.slopes.ctypes.data
    sinks = 0 if scores.sinks is None else scores.sinks.ctypes.data
    _, span_len, kv_heads, _ = keys.numbers.shape
    words = (
        *(query.address, query.stride, out.address, heads),
        *(plan.items, plan.parts, spans.tables, spans.table_len),
        *(*keys.words, *values.words, span_len, kv_heads, keys.size, values.size),
        *(scores.window or 0, slopes, sinks, int(scores.rounded)),
        *(float(scores.scale), float(scores.softcap or 0)),
        pool_of(scratch_bytes(keys.size, values.size)),
    )
    return [
        Call(_attend_kernel(keys.kind), words, head_tasks(heads, kv_heads), 1, plan.count),
        Call(_merge, words, 1, 1, plan.count),
    ]


@variants
def _attend_kernel(kind: Element) -> Kernel:
    _demand(kind)
    one, many = recipes("float32", rounded=False, tier=chosen())

    def attend(words: int, rows: int, task: int) -> None:  # noqa: ARG001
        attention, spans = _attention(words), _span_places(words)
        units = head_tasks(attention.heads, spans.kv_heads)
        memory = borrow(word(words, 34), task)
        softmax = Softmax(
            real(words, 32),
            real(words, 33),
            word(words, 28),
            word(words, 29),
            word(words, 30),
            word(words, 31) != 0,
        )
        number, unit = task // units, task % units
        attend_task(kind, one, many, number, unit, attention, spans, softmax, memory)
        give_back(memory)

    return attend


def attention_kernels(kind: str) -> tuple[Kernel, ...]:
    """Return the kernels that attention over keys and values of a kind calls, by its name."""
    return _attend_kernel(ELEMENTS[kind]), _append_kernel(ELEMENTS[kind]), _merge


def _demand(kind: Element) -> None:
    if kind == FLOAT16:
        demand_half()


def _merge(words: int, rows: int, task: int) -> None:  # noqa: ARG001
    merge_task(task, _attention(words), word(words, 27), word(words, 30))


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
    return SpanPlaces(
        _place_at(words, 8),
        _place_at(words, 16),
        _place_at(words, 12),
        _place_at(words, 20),
        word(words, 24),
        word(words, 25),
        word(words, 26),
        word(words, 27),
    )


@in_kernel
def _place_at(words: int, first: int) -> SpanPlace:
    return SpanPlace(
        word(words, first), word(words, first + 1), word(words, first + 2), word(words, first + 3)
    )
