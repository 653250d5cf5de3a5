"""The operators of a layer as calls, beside the products of `product_call`. All rows are float32.

What a step brings with it, ids or span tables, lies elsewhere in every step: such arguments are
given as the address of the int64 that holds the address (`Place`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload
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
from spaninfer_kernels_cpu.call import ROWS, WANTED, Call, Kernel, Rows, address_of, real, word
from spaninfer_kernels_cpu.constants import Constant
from spaninfer_kernels_cpu.elements import ELEMENTS, FLOAT32, Element, read
from spaninfer_kernels_cpu.exponential import tanh
from spaninfer_kernels_cpu.pointer import floats_at, numbers_at
from spaninfer_kernels_cpu.recipe import recipes
from spaninfer_kernels_cpu.rows_kernel import (
    ACTIVATIONS,
    Activation,
    activated,
    layer_norm,
    rms_norm,
)
from spaninfer_kernels_cpu.spans import Place as SpanPlace
from spaninfer_kernels_cpu.spans import Spans as SpanPlaces
from spaninfer_kernels_cpu.tiers import chosen

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Place = int

NUMBERS_PER_TASK = 2048  # of cheap arithmetic, about 1 µs: less is not worth another thread


@njit(error_model="numpy")
def _held(words: int, number: int) -> int:
    """Return the address that lies where an argument points."""
    address: int = word(word(words, number), 0)
    return address


def _rows_per_task(width: int) -> int:
    return max(1, NUMBERS_PER_TASK // width)


# ---- rows by index -------------------------------------------------------------------------------


def embed_call(
    table: NDArray[np.generic], *, ids: Place, out: Rows, offset: int = 0, scale: float = 1.0
) -> Call:
    """Write rows ids[T] + offset (int32) of table[V C], float32 or 16-bit floats, times scale."""
    element = ELEMENTS[table.dtype.name]
    channels = table.shape[1]
    words = (table.ctypes.data, table.strides[0], ids, offset, out.address, out.stride, channels)
    return Call(_embed(element), (*words, float(scale)), 1, _rows_per_task(channels))


@cache
def _embed(element: Element) -> int:
    def embed(words: int, rows: int, task: int) -> None:
        channels, scale = word(words, 6), real(words, 7)
        ids = numbers_at(_held(words, 2), rows, np.int32)
        some = max(1, NUMBERS_PER_TASK // channels)
        for row in range(task * some, min(rows, (task + 1) * some)):
            source = word(words, 0) + (ids[row] + word(words, 3)) * word(words, 1)
            out = floats_at(word(words, 4) + row * word(words, 5), channels)
            for i in range(channels):
                out[i] = read(element, source, i) * scale

    return address_of(embed)


def take_rows_call(x: Rows, *, wanted: Place, out: Rows, channels: int) -> Call:
    """Write rows wanted[W] (int32) of x to out[W C]."""
    words = (x.address, x.stride, wanted, out.address, out.stride, channels)
    return Call(address_of(_take_rows), words, 1, 1, WANTED)


def _take_rows(words: int, rows: int, task: int) -> None:
    wanted = numbers_at(_held(words, 2), rows, np.int32)
    source = floats_at(word(words, 0) + wanted[task] * word(words, 1), word(words, 5))
    out = floats_at(word(words, 3) + task * word(words, 4), word(words, 5))
    for i in range(len(out)):
        out[i] = source[i]


def copy_call(
    x: Rows,
    *,
    out: Rows,
    parts: int,
    size: int,
    first: int,
    out_size: int,
    out_first: int,
    count: int,
) -> Call:
    """Write numbers [first, first + count) of every one of `parts` parts of x's rows.

    A part of x has `size` numbers; one of out has `out_size`, and takes them from out_first on.
    """
    rows = (x.address, x.stride, out.address, out.stride)
    words = (*rows, parts, size, first, out_size, out_first, count)
    return Call(address_of(_copy), words, 1, _rows_per_task(parts * count))


def _copy(words: int, rows: int, task: int) -> None:
    parts, count = word(words, 4), word(words, 9)
    some = max(1, NUMBERS_PER_TASK // (parts * count))
    for row in range(task * some, min(rows, (task + 1) * some)):
        for part in range(parts):
            first = 4 * (part * word(words, 5) + word(words, 6))
            source = floats_at(word(words, 0) + row * word(words, 1) + first, count)
            first = 4 * (part * word(words, 7) + word(words, 8))
            out = floats_at(word(words, 2) + row * word(words, 3) + first, count)
            for i in range(count):
                out[i] = source[i]


# ---- norms ---------------------------------------------------------------------------------------


def rms_norm_call(
    x: Rows,
    *,
    weight: Floats,
    out: Rows,
    eps: float,
    plus_one: bool,
    parts: int = 1,
    count: int = ROWS,
) -> Call:
    """Write the RMS norm of every one of `parts` parts of a row, times weight[C] or 1 + weight."""
    channels = len(weight)
    words = (x.address, x.stride, out.address, out.stride, weight.ctypes.data, parts, channels)
    some = _rows_per_task(parts * channels)
    return Call(address_of(_rms_norm), (*words, int(plus_one), float(eps)), 1, some, count)


def _rms_norm(words: int, rows: int, task: int) -> None:
    parts, channels = word(words, 5), word(words, 6)
    weight, plus_one, eps = word(words, 4), word(words, 7) != 0, real(words, 8)
    some = max(1, NUMBERS_PER_TASK // (parts * channels))
    for row in range(task * some, min(rows, (task + 1) * some)):
        x, out = word(words, 0) + row * word(words, 1), word(words, 2) + row * word(words, 3)
        rms_norm(FLOAT32, 0, 1, x, 0, weight, out, parts, channels, eps, plus_one)


def layer_norm_call(
    x: Rows,
    *,
    weight: Floats,
    bias: Floats | None,
    out: Rows,
    eps: float,
    parts: int = 1,
    count: int = ROWS,
) -> Call:
    """Write the layer norm of every one of `parts` parts of a row, times weight[C] plus bias[C]."""
    channels = len(weight)
    address = 0 if bias is None else bias.ctypes.data
    words = (x.address, x.stride, out.address, out.stride, weight.ctypes.data, parts, channels)
    some = _rows_per_task(parts * channels)
    return Call(address_of(_layer_norm), (*words, address, float(eps)), 1, some, count)


def _layer_norm(words: int, rows: int, task: int) -> None:
    parts, channels = word(words, 5), word(words, 6)
    weight, bias, eps = word(words, 4), word(words, 7), real(words, 8)
    some = max(1, NUMBERS_PER_TASK // (parts * channels))
    for row in range(task * some, min(rows, (task + 1) * some)):
        x, out = word(words, 0) + row * word(words, 1), word(words, 2) + row * word(words, 3)
        layer_norm(FLOAT32, 0, 1, x, 0, weight, bias, out, parts, channels, eps)


# ---- number by number ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Formula(Constant):
    """What is computed of x, y and a number: one of _FORMULAS, or an activation, gated or not."""

    name: str
    activation: Activation | None = None


def computed(formula: Formula, x: np.float32, y: np.float32, number: np.float32) -> np.float32:
    """Return a formula's value."""
    raise NotImplementedError("exists in Numba functions only")


@overload(computed)
def _computed(formula, x, y, number):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Choose the code by the type of the constant; Numba compares signatures to the letter."""
    kind: Any = formula
    activation = kind.value.activation
    match kind.value.name:
        case "gate":
            return lambda formula, x, y, number: activated(activation, x) * y  # noqa: ARG005
        case "activation":
            return lambda formula, x, y, number: activated(activation, x)  # noqa: ARG005
    return _FORMULAS[kind.value.name]


_FORMULAS = {
    "add": lambda formula, x, y, number: x + y * number,  # noqa: ARG005
    "scale": lambda formula, x, y, number: x * number,  # noqa: ARG005
    "softcap": lambda formula, x, y, number: number * tanh(x / number),  # noqa: ARG005
}


@cache
def _over_columns(formula: Formula) -> int:
    """Return the kernel of a formula; a task is some columns of a row, or rows."""

    def elementwise(words: int, rows: int, task: int) -> None:
        channels, columns, number = word(words, 6), word(words, 7), real(words, 8)
        some = max(1, NUMBERS_PER_TASK // channels)
        first = channels * (task % columns) // columns
        count = channels * (task % columns + 1) // columns - first
        begin = task // columns * some
        for row in range(begin, min(rows, begin + some)):
            x = floats_at(word(words, 0) + row * word(words, 1) + 4 * first, count)
            y = floats_at(word(words, 2) + row * word(words, 3) + 4 * first, count)
            out = floats_at(word(words, 4) + row * word(words, 5) + 4 * first, count)
            for i in range(count):
                out[i] = computed(formula, x[i], y[i], number)

    return address_of(elementwise)


def formula_call(
    formula: Formula,
    x: Rows,
    y: Rows,
    *,
    out: Rows,
    channels: int,
    number: float = 0.0,
    count: int = ROWS,
) -> Call:
    """Write what a formula makes of x[T C], y[T C] and a number; y is x where nothing reads it."""
    rows = (x.address, x.stride, y.address, y.stride, out.address, out.stride)
    columns = -(-channels // NUMBERS_PER_TASK)
    words = (*rows, channels, columns, float(number))
    return Call(_over_columns(formula), words, columns, _rows_per_task(channels), count)


ADD, SCALE, SOFTCAP = Formula("add"), Formula("scale"), Formula("softcap")
"""x + y * number; x * number; number * tanh(x / number)."""


def gate_of(act: str) -> Formula:
    """Return act(x) * y."""
    return Formula("gate", ACTIVATIONS[act])


def activation_of(act: str) -> Formula:
    """Return act(x)."""
    return Formula("activation", ACTIVATIONS[act])


# ---- heads ---------------------------------------------------------------------------------------


def rotate_call(
    x: Rows, *, out: Rows, heads: int, size: int, half: int, cos: Place, sin: Place, paired: bool
) -> Call:
    """Rotate the first 2 * half channels of every head by the angles of cos and sin[T half].

    Channel i turns with channel i + half, or, `paired`, 2 i with 2 i + 1.
    """
    words = (x.address, x.stride, out.address, out.stride, cos, sin, heads, size, half, int(paired))
    return Call(address_of(_rotate), words, 1, _rows_per_task(heads * size))


def _rotate(words: int, rows: int, task: int) -> None:
    heads, size, half, paired = word(words, 6), word(words, 7), word(words, 8), word(words, 9)
    some = max(1, NUMBERS_PER_TASK // (heads * size))
    for row in range(task * some, min(rows, (task + 1) * some)):
        cos = floats_at(_held(words, 4) + row * half * 4, half)
        sin = floats_at(_held(words, 5) + row * half * 4, half)
        for head in range(heads):
            x = floats_at(word(words, 0) + row * word(words, 1) + head * size * 4, size)
            out = floats_at(word(words, 2) + row * word(words, 3) + head * size * 4, size)
            if paired:
                for i in range(half):
                    a, b = x[2 * i], x[2 * i + 1]
                    out[2 * i] = a * cos[i] - b * sin[i]
                    out[2 * i + 1] = b * cos[i] + a * sin[i]
            else:
                for i in range(half):
                    a, b = x[i], x[half + i]
                    out[i] = a * cos[i] - b * sin[i]
                    out[half + i] = b * cos[i] + a * sin[i]
            for i in range(2 * half, size):
                out[i] = x[i]


# ---- attention -----------------------------------------------------------------------------------


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
    return Call(address_of(_append), words, 1, _rows_per_task(heads * size))


def _append(words: int, rows: int, task: int) -> None:
    span_len, heads, size = word(words, 6), word(words, 7), word(words, 8)
    tables, table_len = _held(words, 9), word(word(words, 10), 0)
    request = numbers_at(_held(words, 11), rows, np.int32)
    position = numbers_at(_held(words, 12), rows, np.int32)
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


@njit(error_model="numpy")
def _attention(words: int) -> Attention:
    return Attention(
        word(words, 0),
        word(words, 1),
        word(words, 2),
        word(words, 3),
        _held(words, 4),
        0,
        _held(words, 6),
        word(word(words, 7), 0) * 4,
        _held(words, 5),
    )


@njit(error_model="numpy")
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


CALLED: tuple[Kernel, ...] = (
    *(_take_rows, _copy, _rms_norm, _layer_norm, _rotate, _append, _merge),
)


def make_calls_ready(acts: tuple[str, ...] = tuple(ACTIVATIONS)) -> None:
    """Compile every kernel of this module, or load it from the cache on disk."""
    for kernel in CALLED:
        address_of(kernel)
    for element in ("float32", "bfloat16", "float16"):
        _embed(ELEMENTS[element])
    for formula in (ADD, SCALE, SOFTCAP, *map(gate_of, acts), *map(activation_of, acts)):
        _over_columns(formula)
    _attend_kernel()
