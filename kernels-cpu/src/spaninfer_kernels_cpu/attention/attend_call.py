"""Attention as calls: rows appended to spans, and what queries read from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.attention.append_kernel import store
from spaninfer_kernels_cpu.attention.attend_block import Softmax
from spaninfer_kernels_cpu.attention.attend_kernel import (
    Attention,
    attend_task,
    head_tasks,
    merge_task,
    scratch_bytes,
)
from spaninfer_kernels_cpu.attention.attention import KINDS, Scores
from spaninfer_kernels_cpu.attention.spans import ArrayStrides, CacheArrays, place_of
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import (
    ELEMENTS,
    FLOAT16,
    UINT4,
    Element,
    larger,
    read_index,
    smaller,
)
from spaninfer_kernels_cpu.codegen.isa_level import active_level, require_float16
from spaninfer_kernels_cpu.codegen.kernel import Kernel, variants
from spaninfer_kernels_cpu.gemm.micro_kernel import micro_kernels
from spaninfer_kernels_cpu.runtime.call import (
    NUMBERS_PER_TASK,
    Call,
    Indirect,
    Matrix,
    held,
    real,
    tokens_per_task,
    word,
)
from spaninfer_kernels_cpu.runtime.scratch_pool import acquire, give_back, scratch_pool

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How attention of a step is cut (`attention_plan.plan_attention`).

    Which of the step's counts is that of its items; places of items[N 8] and memory for parts.
    """

    count: int
    items: Indirect
    parts: Indirect


@dataclass(frozen=True, slots=True)
class KVArray:
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
class LayerCache:
    """Where the keys and values of a layer lie, and how rows find them.

    tables, request, position: places of the arrays of `attention.Matrix`; table_len: place of their
    M.
    """

    keys: KVArray
    values: KVArray
    tables: Indirect
    table_len: Indirect
    request: Indirect
    position: Indirect


def append_call(x: Matrix, into: KVArray, spans: LayerCache) -> Call:
    """Write rows of heads (float32) into `into`, which is the keys or the values of `spans`."""
    _, span_len, heads, _ = into.numbers.shape
    words = (
        *(x.address, x.stride, *into.words, span_len, heads, into.size),
        *(spans.tables, spans.table_len, spans.request, spans.position),
    )
    return Call(_append_kernel(into.kind), words, 1, tokens_per_task(heads * into.size))


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
    query: Matrix,
    *,
    heads: int,
    spans: LayerCache,
    plan: AttentionPlan,
    scores: Scores,
    out: Matrix,
) -> list[Call]:
    """Return the calls that write what query[T H D] reads to out[T H E], whose rows have no gaps.

    Both are float32. The second call joins what tasks read in chunks of a long context.
    """
    keys, values = spans.keys, spans.values
    slopes = 0 if scores.slopes is None else scores.slopes.ctypes.data
    sinks = 0 if scores.sinks is None else scores.sinks.ctypes.data
    _, span_len, kv_heads, _ = keys.numbers.shape
    words = (
        *(query.address, query.stride, out.address, heads),
        *(plan.items, plan.parts, spans.tables, spans.table_len),
        *(*keys.words, *values.words, span_len, kv_heads, keys.size, values.size),
        *(scores.window or 0, slopes, sinks, int(scores.rounded)),
        *(float(scores.scale), float(scores.softcap or 0)),
        scratch_pool(scratch_bytes(keys.size, values.size)),
    )
    return [
        Call(_attend_kernel(keys.kind), words, head_tasks(heads, kv_heads), 1, plan.count),
        Call(_merge, words, 1, 1, plan.count),
    ]


@variants
def _attend_kernel(kind: Element) -> Kernel:
    _demand(kind)
    one, many = micro_kernels("float32", rounded=False, level=active_level())

    def attend(words: int, rows: int, task: int) -> None:  # noqa: ARG001
        attention, spans = _attention(words), _cache_arrays(words)
        units = head_tasks(attention.heads, spans.kv_heads)
        memory = acquire(word(words, 34), task)
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
        require_float16()


def _merge(words: int, rows: int, task: int) -> None:  # noqa: ARG001
    merge_task(task, _attention(words), word(words, 27), word(words, 30))


@device_function
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


@device_function
def _cache_arrays(words: int) -> CacheArrays:
    return CacheArrays(
        _place_at(words, 8),
        _place_at(words, 16),
        _place_at(words, 12),
        _place_at(words, 20),
        word(words, 24),
        word(words, 25),
        word(words, 26),
        word(words, 27),
    )


@device_function
def _place_at(words: int, first: int) -> ArrayStrides:
    return ArrayStrides(
        word(words, first), word(words, first + 1), word(words, first + 2), word(words, first + 3)
    )
