"""Heads made ready for attention, for Numba functions to call: norm, rotary embedding, append.

Queries and keys are changed where the product wrote them (float32); keys and values are then
written into the spans, rounded or as codes. Addresses are in bytes, 0 is none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.extending import overload

from spaninfer_kernels_cpu.elements import FLOAT32, Element, read, read_index, write
from spaninfer_kernels_cpu.in_kernel import in_kernel
from spaninfer_kernels_cpu.pointer import numbers_at
from spaninfer_kernels_cpu.rounding import rounded
from spaninfer_kernels_cpu.spans import Place, Spans, place_of

_REORDER = {"contract", "reassoc", "nsz", "arcp"}  # sums may go by lanes; NaN and inf still hold
_ORDERED = _REORDER | {"nnan"}  # an extreme only becomes vector code where NaN need not win
_LEAST_SCALE = np.float32(1e-5)  # constant vectors still get a scale to divide by
_ZERO = np.float32(0)
_ONE = np.float32(1)


class Heads(NamedTuple):
    """Rows of queries[T H D], keys[T K D] and values[T K E] in float32; heads are contiguous.

    Strides are bytes from row to row. `value` is 0 where values are part of the keys. Row t goes to
    place[t] of span[t], both int32; rows with a negative span are not appended.
    """

    query: int
    query_stride: int
    key: int
    key_stride: int
    value: int
    value_stride: int
    rows: int
    heads: int
    span: int
    place: int


class Rotary(NamedTuple):
    """cos and sin[T R/2] in float32 turn the first R numbers of a head; 0 without rotary embedding.

    Pairs are i and i + R/2, or where `interleaved`, 2 i and 2 i + 1. Before that, heads are
    normalised by their root mean square and query_norm[D] or key_norm[D] (float32, 0 for none).
    """

    cos: int
    sin: int
    half: int
    interleaved: bool
    query_norm: int
    key_norm: int
    eps: np.float32
    plus_one: bool


@in_kernel
def rope_append(
    kind: Element, part: int, parts: int, heads: Heads, rotary: Rotary, spans: Spans
) -> None:
    """Turn queries and keys in place and write keys and values into spans of a kind.

    Parts share heads of rows, so that one row keeps several busy.
    """
    per_row = heads.heads + spans.kv_heads
    units = heads.rows * per_row
    size = spans.key_size
    for unit in range(units * part // parts, units * (part + 1) // parts):
        row, head = unit // per_row, unit % per_row
        if head < heads.heads:
            query = heads.query + row * heads.query_stride + head * size * 4
            _turn(query, size, row, rotary, rotary.query_norm)
        else:
            head -= heads.heads
            key = heads.key + row * heads.key_stride + head * size * 4
            _turn(key, size, row, rotary, rotary.key_norm)
            span = read_index(heads.span, row)
            token = read_index(heads.place, row)
            if span >= 0:
                _append(kind, key, size, spans.keys, spans.key_scales, span, token, head)
                if heads.value != 0:
                    value = heads.value + row * heads.value_stride + head * spans.value_size * 4
                    size_of_value, place = spans.value_size, spans.values
                    _append(
                        kind, value, size_of_value, place, spans.value_scales, span, token, head
                    )


@in_kernel
def _turn(x: int, size: int, row: int, rotary: Rotary, norm: int) -> None:
    """Normalise and rotate x[size] in place."""
    if norm != 0:
        more = _ONE if rotary.plus_one else _ZERO
        factor = _ONE / np.sqrt(_squares(x, size) / np.float32(size) + rotary.eps)
        for i in range(size):
            write(FLOAT32, x, i, read(FLOAT32, x, i) * factor * (read(FLOAT32, norm, i) + more))
    if rotary.cos != 0:
        half = rotary.half
        cos, sin = rotary.cos + row * half * 4, rotary.sin + row * half * 4
        if rotary.interleaved:
            _rotate(x, 2, x + 4, cos, sin, half)
        else:
            _rotate(x, 1, x + half * 4, cos, sin, half)


@njit(fastmath=_REORDER, error_model="numpy")
def _squares(x: int, count: int) -> np.float32:
    total = _ZERO
    for i in range(count):
        total += read(FLOAT32, x, i) * read(FLOAT32, x, i)
    return total


@njit(fastmath={"contract"}, error_model="numpy")
def _rotate(first: int, step: int, second: int, cos: int, sin: int, count: int) -> None:
    """Turn the pairs (first[step * i], second[step * i])."""
    for i in range(count):
        a, b = read(FLOAT32, first, step * i), read(FLOAT32, second, step * i)
        c, s = read(FLOAT32, cos, i), read(FLOAT32, sin, i)
        write(FLOAT32, first, step * i, a * c - b * s)
        write(FLOAT32, second, step * i, b * c + a * s)


# ---- spans -------------------------------------------------------------------------------------


@in_kernel
def _append(
    kind: Element,
    x: int,
    size: int,
    place: Place,
    scales: Place,
    span: int,
    token: int,
    head: int,
) -> None:
    into = place_of(place, span, token, head)
    _store(kind, x, size, into, place_of(scales, span, token, head))


def _store(kind: Element, x: int, size: int, into: int, scales: int) -> Any:
    raise NotImplementedError("exists in Numba functions only")


@overload(_store)
def _choose_store(
    kind: Element,
    x: int,  # noqa: ARG001
    size: int,  # noqa: ARG001
    into: int,  # noqa: ARG001
    scales: int,  # noqa: ARG001
) -> Any:
    """Choose the code; Numba hands in types, but wants the signature repeated to the letter."""
    element: Any = kind
    if not element.value.is_code:
        return _store_floats
    return _store_bytes if element.value.bits == 8 else _store_nibbles


def _store_floats(kind: Element, x: int, size: int, into: int, scales: int) -> Any:  # noqa: ARG001
    for i in range(size):
        write(kind, into, i, read(FLOAT32, x, i))


def _store_bytes(kind: Element, x: int, size: int, into: int, scales: int) -> Any:
    zero, scale = _grid(kind, x, size, scales)
    codes = numbers_at(into, size, np.int8)
    for i in range(size):
        codes[i] = np.int8(_code(kind, read(FLOAT32, x, i), zero, scale))


def _store_nibbles(kind: Element, x: int, size: int, into: int, scales: int) -> Any:
    zero, scale = _grid(kind, x, size, scales)
    codes = numbers_at(into, size // 2, np.uint8)
    for i in range(size // 2):
        low = _code(kind, read(FLOAT32, x, 2 * i), zero, scale)
        high = _code(kind, read(FLOAT32, x, 2 * i + 1), zero, scale)
        codes[i] = np.uint8(low | high << np.int32(4))


@njit(fastmath=_ORDERED, error_model="numpy")
def _extremes(x: int, count: int) -> tuple[np.float32, np.float32]:
    """Return the least and the largest of x and 0."""
    least = most = _ZERO
    for i in range(count):
        number = read(FLOAT32, x, i)
        least = min(least, number)
        most = max(most, number)
    return least, most


@in_kernel
def _grid(kind: Element, x: int, size: int, scales: int) -> tuple[np.float32, np.float32]:
    """Write and return the zero and the scale of x: the range of its numbers and 0."""
    least, most = _extremes(x, size)
    first, last = np.float32(kind.first), np.float32(kind.last)
    scale = max((most - least) / (last - first), _LEAST_SCALE)
    zero = np.float32(rounded(min(max(first - least / scale, first), last)))
    write(FLOAT32, scales, 0, zero)
    write(FLOAT32, scales, 1, scale)
    return zero, scale


@in_kernel
def _code(kind: Element, number: np.float32, zero: np.float32, scale: np.float32) -> np.int32:
    code = number / scale + zero
    return rounded(min(max(code, np.float32(kind.first)), np.float32(kind.last)))
