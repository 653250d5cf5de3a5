"""Attention of many queries over keys and values that lie in spans: what callers see.

A query at position p of its request attends the positions j <= p (with a window, those above
p - window), which lie in the spans that the request's table names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numba import typeof, types
from numpy.typing import NDArray

from spaninfer_kernels_cpu import attend_kernel, attention_plan
from spaninfer_kernels_cpu.attend_block import Softmax
from spaninfer_kernels_cpu.attend_kernel import Attention, attend_task
from spaninfer_kernels_cpu.attention_plan import plan_of
from spaninfer_kernels_cpu.compiled import entry, make_ready
from spaninfer_kernels_cpu.elements import BFLOAT16, FLOAT16, FLOAT32, INT8, UINT4, Element
from spaninfer_kernels_cpu.errors import DTypeError, KernelError, ShapeError, demand_size
from spaninfer_kernels_cpu.recipe import recipes
from spaninfer_kernels_cpu.spans import Place, Spans
from spaninfer_kernels_cpu.threads import usable_cpus
from spaninfer_kernels_cpu.tiers import chosen, demand_half
from spaninfer_kernels_cpu.workers import COUNTER, Counter, next_task, share

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Numbers = NDArray[Any]

MAX_POSITION = 2**31 - 1  # of a token in its request: positions are int32
SERIAL_BELOW = 2_000_000  # multiply-adds, some 100 µs: fewer are done before a helper wakes up

KINDS: dict[np.dtype[Any], Element] = {
    np.dtype(np.float32): FLOAT32,
    np.dtype(ml_dtypes.bfloat16): BFLOAT16,
    np.dtype(np.float16): FLOAT16,
    np.dtype(np.int8): INT8,
    np.dtype(np.uint8): UINT4,
}
"""What keys and values of a dtype hold."""

_NO_PLACE = Place(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Rows:
    """Which request and position every query row has, and where the requests' spans are.

    The same for all layers of a cache group; made once per step.
    tables[R M] int32: request r keeps positions [i L, (i + 1) L) in span tables[r, i]; entries for
    positions that no row attends are never read. request[T] int32 indexes `tables`; position[T]
    int32. Neighbouring rows of one request with rising positions share their reads.
    """

    tables: Ints
    request: Ints
    position: Ints

    def __post_init__(self) -> None:
        """Raise unless types, shapes and numbers are as described."""
        _demand("tables", self.tables, np.int32, "R M", ordered=2)
        _demand("request", self.request, np.int32, "T", ordered=1)
        _demand("position", self.position, np.int32, "T", ordered=1)
        if len(self.request) != len(self.position):
            raise ShapeError(
                f"request has {len(self.request)} rows, but position has {len(self.position)}"
            )
        _demand_below("request", self.request, len(self.tables), "rows of tables")
        if len(self.position) and self.position.min() < 0:
            raise KernelError(f"position holds {self.position.min()}; allowed is 0 or more")


@dataclass(frozen=True, slots=True)
class Scores:
    """How products of queries and keys become the argument of the softmax.

    score = softcap * tanh(scale * q.k / softcap) + slopes[h] * (j - p), for positions
    p - window < j <= p; without softcap, slopes[H] (float32) or window, that part is left out.
    The bias differs from the usual slope * j by a constant per row, which softmax does not see
    and which float32 rounds less. Where it is `rounded` it is scale * slopes[h] * j instead, with
    slopes that are bfloat16, j and the product rounded to it (Falcon). sinks[H] (float32): one
    more score per head, without a value.
    """

    scale: float
    softcap: float | None = None
    window: int | None = None
    slopes: Floats | None = None
    sinks: Floats | None = None
    rounded: bool = False

    def __post_init__(self) -> None:
        """Raise unless every number means something."""
        if self.softcap is not None and not self.softcap > 0:
            raise ShapeError(f"softcap is {self.softcap}; give a positive number, or None")
        if self.window is not None:
            demand_size("window", self.window, 1, MAX_POSITION)
        for name, numbers in (("slopes", self.slopes), ("sinks", self.sinks)):
            if numbers is not None:
                _demand(name, numbers, np.float32, "H", ordered=1)


def attend(
    query: Floats,
    keys: Numbers,
    values: Numbers,
    rows: Rows,
    scores: Scores,
    *,
    out: Floats,
    key_scales: Floats | None = None,
    value_scales: Floats | None = None,
) -> None:
    """Write into out[T H E] what query[T H D] reads from keys[S L K D] and values[S L K E].

    query and out are float32. Keys and values are float32, bfloat16, float16, or codes that stand
    for (code - zero) * scale: int8, or uint8 with two codes to a byte (D / 2 and E / 2 bytes, the
    even one in the low half), with key_scales and value_scales[S L K 2] (float32: zero, scale).
    H is a multiple of K: query head h reads key/value head h // (H / K). Keys, values and scales
    may be strided on every axis but the last (all layers in one array; for MLA, values that are
    the first E columns of the keys). Works on every usable CPU where that pays. Raises KernelError
    for arguments that do not fit, and for spans and positions that there are not.
    """
    spans = spans_of(keys, values, key_scales, value_scales)
    _check(query, spans, keys, rows, scores, out)
    if not len(query):
        return
    group, window = query.shape[1] // spans.kv_heads, scores.window or 0
    _check_tables(rows, len(keys), spans.span_len, window)
    items, num_parts = plan_of(rows.request, rows.position, group, window)
    per_part = query.shape[1] * (spans.value_size + attend_kernel.PART_NUMBERS)
    parts = np.empty(num_parts * per_part, np.float32)
    call = Attention(
        query=query.ctypes.data,
        query_stride=query.strides[0],
        out=out.ctypes.data,
        heads=query.shape[1],
        items=items.ctypes.data,
        num_items=len(items),
        tables=rows.tables.ctypes.data,
        table_stride=rows.tables.strides[0],
        parts=parts.ctypes.data,
    )
    sinks = _address(scores.sinks)
    softmax = Softmax(
        np.float32(scores.scale),
        np.float32(scores.softcap or 0),
        window,
        _address(scores.slopes),
        sinks,
        scores.rounded,
    )
    workers = _num_workers(query, spans, rows, scores)
    share(compiled(KINDS[keys.dtype]), (call, spans, softmax), workers)
    if num_parts:
        share(_merger(), (call, spans.value_size, sinks), workers)


def make_attention_ready(kind: Element) -> None:
    """Compile what `attend` needs for keys and values of a kind, or load it from disk."""
    compiled(kind)
    _merger()
    attention_plan.make_planner_ready()


@cache
def compiled(kind: Element = FLOAT32) -> Callable[..., None]:
    """Return the kernel for keys and values of a kind, ready to run."""
    if kind == FLOAT16:
        demand_half()
    one, many = recipes("float32", rounded=False, tier=chosen())

    @entry
    def work(counter: Counter, call: Attention, spans: Spans, softmax: Softmax) -> None:
        """Do the tasks that `counter` gives to this thread, until none is left."""
        size = attend_kernel.scratch_bytes(spans.key_size, spans.value_size)
        memory = np.empty(size, np.uint8)
        units = attend_kernel.head_tasks(call.heads, spans.kv_heads)
        task = next_task(counter)
        while task < call.num_items * units:
            number, unit = task // units, task % units
            attend_task(kind, one, many, number, unit, call, spans, softmax, memory.ctypes.data)
            task = next_task(counter)

    make_ready(work, _SIGNATURE)
    return work


@cache
def _merger() -> Callable[..., None]:
    make_ready(_merge, _MERGE_SIGNATURE)
    return _merge


@entry
def _merge(counter: Counter, call: Attention, value_size: int, sinks: int) -> None:
    task = next_task(counter)
    while task < call.num_items:
        attend_kernel.merge_task(task, call, value_size, sinks)
        task = next_task(counter)


_int64 = types.int64
_CALL = typeof(Attention(*[1] * 9))  # type: ignore[no-untyped-call]
_SPANS = typeof(  # type: ignore[no-untyped-call]
    Spans(_NO_PLACE, _NO_PLACE, _NO_PLACE, _NO_PLACE, 1, 1, 1, 1)
)
_SOFTMAX = types.NamedTuple(  # type: ignore[no-untyped-call]
    (*[types.float32] * 2, *[_int64] * 3, types.boolean), Softmax
)
_SIGNATURE = (COUNTER, _CALL, _SPANS, _SOFTMAX)
_MERGE_SIGNATURE = (COUNTER, _CALL, _int64, _int64)


def spans_of(
    keys: Numbers, values: Numbers, key_scales: Floats | None, value_scales: Floats | None
) -> Spans:
    """Return where keys and values lie; raise unless they and their scales fit together."""
    kind = KINDS.get(keys.dtype)
    if kind is None or values.dtype != keys.dtype:
        names = ", ".join(str(dtype) for dtype in KINDS)
        raise DTypeError(
            f"keys hold {keys.dtype} and values {values.dtype}; the kernel takes one of {names}"
        )
    _demand("keys", keys, keys.dtype, "S L K D", ordered=1)
    _demand("values", values, values.dtype, "S L K E", ordered=1)
    if 0 in keys.shape[1:] or 0 in values.shape[1:]:
        raise ShapeError(
            f"keys {keys.shape} and values {values.shape}: none of the axes (L K D) and (L K E) "
            "may be empty"
        )
    if keys.shape[:3] != values.shape[:3]:
        raise ShapeError(f"keys {keys.shape} and values {values.shape} differ in (S L K)")
    for name, scales in (("key_scales", key_scales), ("value_scales", value_scales)):
        if kind.is_code != (scales is not None):
            raise ShapeError(f"{name}: {kind.name} keys and values {_SCALES[kind.is_code]}")
        if scales is not None:
            _demand(name, scales, np.float32, "S L K 2", ordered=1)
            if scales.shape != (*keys.shape[:3], 2):
                raise ShapeError(
                    f"{name}: expected shape {(*keys.shape[:3], 2)}, got {scales.shape}"
                )
    packed = 2 if kind == UINT4 else 1
    return Spans(
        keys=_place(keys),
        values=_place(values),
        key_scales=_place(key_scales),
        value_scales=_place(value_scales),
        span_len=keys.shape[1],
        kv_heads=keys.shape[2],
        key_size=keys.shape[3] * packed,
        value_size=values.shape[3] * packed,
    )


_SCALES = {True: "need scales[S L K 2] (zero, scale)", False: "have no scales"}


def _place(array: Numbers | None) -> Place:
    """Return where the numbers of an array [S L K ...] lie."""
    return _NO_PLACE if array is None else Place(array.ctypes.data, *array.strides[:3])


def _address(array: Floats | None) -> int:
    return 0 if array is None else array.ctypes.data


def _num_workers(query: Floats, spans: Spans, rows: Rows, scores: Scores) -> int:
    """Return how many threads share the work: one where it is little."""
    if usable_cpus() == 1:
        return 1
    num_keys = int(rows.position.max()) + 1
    if scores.window is not None:
        num_keys = min(num_keys, scores.window)
    products = query.size * num_keys * (1 + spans.value_size / spans.key_size)
    return 1 if products < SERIAL_BELOW else usable_cpus()


def _check(
    query: Floats, spans: Spans, keys: Numbers, rows: Rows, scores: Scores, out: Floats
) -> None:
    """Raise unless the arguments have the shapes that `attend` describes, and fit together."""
    _demand("query", query, np.float32, "T H D", ordered=3)
    _demand("out", out, np.float32, "T H E", ordered=3)
    if not out.flags.writeable:
        raise KernelError("out is read-only; give an array that can be written")
    num_rows, heads, key_size = query.shape
    if key_size != spans.key_size:
        raise ShapeError(f"query {query.shape} and keys {keys.shape} differ in D")
    check_heads(heads, spans.kv_heads, scores)
    if out.shape != (num_rows, heads, spans.value_size):
        raise ShapeError(f"out has shape {out.shape}, needs {(num_rows, heads, spans.value_size)}")
    if len(rows.position) != num_rows:
        raise ShapeError(f"query has {num_rows} rows, but position has {len(rows.position)}")


def check_heads(heads: int, kv_heads: int, scores: Scores) -> None:
    """Raise unless as many query heads read each key head, and the scores know every one."""
    if not heads or not kv_heads or heads % kv_heads:
        raise ShapeError(f"{heads} query heads are not a multiple of {kv_heads} key/value heads")
    for name, numbers in (("slopes", scores.slopes), ("sinks", scores.sinks)):
        if numbers is not None and len(numbers) != heads:
            raise ShapeError(f"{name} has {len(numbers)} numbers for {heads} query heads")


def _check_tables(rows: Rows, num_spans: int, span_len: int, window: int) -> None:
    """Raise unless every position that a row attends lies in one of the spans."""
    num_entries = int(rows.position.max()) // span_len + 1
    if num_entries > rows.tables.shape[1]:
        raise KernelError(
            f"position holds {rows.position.max()}; tables have {rows.tables.shape[1]} spans of "
            f"{span_len} tokens per request"
        )
    entries = rows.tables[:, :num_entries]
    if entries.min() >= 0 and entries.max() < num_spans:
        return
    last = rows.position // span_len  # some entries name no span; are they read?
    first = np.maximum(rows.position - window + 1, 0) // span_len if window else np.zeros_like(last)
    readers = np.zeros((len(entries), num_entries + 1), np.int64)
    np.add.at(readers, (rows.request, first), 1)
    np.add.at(readers, (rows.request, last + 1), -1)
    is_read = readers.cumsum(axis=1)[:, :-1] > 0
    _demand_below("tables", entries[is_read], num_spans, "spans")


def _demand_below(name: str, numbers: Ints, limit: int, what: str) -> None:
    """Raise unless all numbers index `limit` things."""
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < limit:
        wrong = numbers.min() if numbers.min() < 0 else numbers.max()
        raise KernelError(f"{name} holds {wrong}; there are {limit} {what}")


def _demand(name: str, array: NDArray[np.generic], dtype: Any, axes: str, *, ordered: int) -> None:
    """Raise unless `array` has this type and these axes, the last `ordered` of them contiguous."""
    if array.dtype != dtype:
        raise DTypeError(f"{name} holds {array.dtype}; the kernel takes {np.dtype(dtype)}")
    letters = axes.split()
    if array.ndim != len(letters):
        raise ShapeError(f"{name}: expected axes ({axes}), got shape {array.shape}")
    if not array.flags.aligned:
        raise ShapeError(
            f"{name} does not lie at a multiple of its elements' {array.itemsize} bytes"
        )
    contiguous = array.flags.c_contiguous or (
        ordered < array.ndim and (array.shape[-1] < 2 or array.strides[-1] == array.itemsize)
    )
    if not contiguous:
        raise ShapeError(
            f"{name}: the last {ordered} of the axes ({axes}) must be contiguous, but the strides "
            f"are {array.strides} bytes for shape {array.shape}"
        )
