"""Attention over spans, for Numba to compile; `attention` describes and checks the arguments.

A task is a few consecutive rows of a request times the query heads that share a key/value head:
each span is read from memory once for all of them, and the softmax is accumulated online, a block
of spans at a time (Milakov & Gimelshein, 2018), so that scores never leave the cache of the CPU.

Masked positions never get a score of -inf; they are left out of the loops. That keeps the
arithmetic free of special values, and slots that no query may see are never read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from spaninfer_kernels_cpu.exponential import exp, tanh
from spaninfer_kernels_cpu.pointer import floats_at
from spaninfer_kernels_cpu.workers import COUNTER, Counter, next_task

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

HEADS = 8  # query heads of a task: more would leave threads idle where all heads share one key
QUERIES = 32  # queries of a task: scores and sums stay in the first-level cache
BLOCK = 128  # positions per step of the softmax: 16 at a time took 40 % longer, 64 about as long

_NOTHING_SEEN = np.float32(-3e38)  # the peak before the first score: finite, so exp() stays so
_ZERO = np.float32(0)
_ONE = np.float32(1)

_REORDER = {"contract", "reassoc", "nsz", "arcp"}  # sums may go by lanes; NaN and inf still hold
_ORDERED = _REORDER | {"nnan"}  # a maximum only becomes vector code where NaN need not win


SIGNATURE = (
    COUNTER,
    types.Array(types.float32, 3, "C"),
    types.Array(types.float32, 4, "A"),
    types.Array(types.float32, 4, "A"),
    types.Array(types.int32, 2, "C"),
    types.Array(types.int32, 1, "C"),
    types.Array(types.int32, 1, "C"),
    types.float32,
    types.float32,
    types.int64,
    types.Array(types.float32, 1, "C"),
    types.Array(types.float32, 3, "C"),
)


class Task(NamedTuple):
    """Rows [start, stop) times query heads [head, last_head), all of one request and key head."""

    start: int
    stop: int
    head: int
    last_head: int


class Cache(NamedTuple):
    """Keys[S L K D], values[S L K E] and the span numbers of the task's request."""

    keys: Floats
    values: Floats
    table: Ints


class Softmax(NamedTuple):
    """The numbers of `attention.Scores`; 0 and an empty array stand for None."""

    scale: np.float32
    softcap: np.float32
    window: int
    slopes: Floats


class Scratch(NamedTuple):
    """What a task keeps of N queries: weights[N B] of a block, peak[N], total[N], sums[N E]."""

    weights: Floats
    peak: Floats
    total: Floats
    sums: Floats


@njit(nogil=True, cache=True, error_model="numpy")
def work(
    counter: Counter,
    query: Floats,
    keys: Floats,
    values: Floats,
    tables: Ints,
    request: Ints,
    position: Ints,
    scale: np.float32,
    softcap: np.float32,
    window: int,
    slopes: Floats,
    out: Floats,
) -> None:
    """Do the tasks that `counter` gives to this thread, until none is left."""
    group = query.shape[1] // keys.shape[2]
    heads = min(group, HEADS)
    rows = max(1, QUERIES // heads)
    softmax = Softmax(scale, softcap, window, slopes)
    scratch = _scratch(rows * heads, _block_len(keys.shape[1]), values.shape[3])
    start = number = 0
    mine = next_task(counter)
    while start < len(request):
        stop = _end_of_run(start, rows, request, position)
        cache = Cache(keys, values, tables[request[start]])
        for first in range(0, query.shape[1], group):
            for head in range(first, first + group, heads):
                if number == mine:
                    task = Task(start, stop, head, min(head + heads, first + group))
                    _attend(task, query, cache, position[start], softmax, scratch, out)
                    mine = next_task(counter)
                number += 1
        start = stop


@njit(error_model="numpy")
def _scratch(num_queries: int, block_len: int, value_size: int) -> Scratch:
    return Scratch(
        np.empty((num_queries, block_len), np.float32),
        np.empty(num_queries, np.float32),
        np.empty(num_queries, np.float32),
        np.empty((num_queries, value_size), np.float32),
    )


@njit(error_model="numpy")
def _end_of_run(start: int, most: int, request: Ints, position: Ints) -> int:
    """Return where the run of neighbouring positions of one request that begins at `start` ends."""
    stop = start + 1
    while (
        stop < min(len(request), start + most)
        and request[stop] == request[start]
        and position[stop] == position[stop - 1] + 1
    ):
        stop += 1
    return stop


@njit(error_model="numpy")
def _attend(
    task: Task,
    query: Floats,
    cache: Cache,
    position: int,
    softmax: Softmax,
    scratch: Scratch,
    out: Floats,
) -> None:
    """Compute out[start:stop, head:last_head] in one pass over the spans that these rows see."""
    keys, values, table = cache
    heads, span_len = task.last_head - task.head, keys.shape[1]
    num_queries = (task.stop - task.start) * heads
    kv_head = task.head // (query.shape[1] // keys.shape[2])
    scratch.peak[:num_queries] = _NOTHING_SEEN
    scratch.total[:num_queries] = 0
    scratch.sums[:num_queries] = 0

    window = softmax.window if softmax.window > 0 else position + len(query) + 1
    low = max(0, position - window + 1)
    high = position + task.stop - task.start
    block = _block_len(span_len)
    for start in range(low - low % block, high, block):
        begin, end = max(low, start), min(high, start + block)
        at = begin
        while at < end:
            count = min(end, at - at % span_len + span_len) - at
            key = _address(keys, table, at, kv_head)
            into = scratch.weights[:, at - begin :]
            _score(task, query, key, keys.strides[1], count, softmax.scale, into)
            at += count
        for n in range(num_queries):
            now = position + n // heads - begin  # the query's position, seen from `begin`
            seen = (max(0, now - window + 1), min(end - begin, now + 1))
            _soften(n, seen, end - begin, now, softmax, task.head + n % heads, scratch)
        at = begin
        while at < end:
            count = min(end, at - at % span_len + span_len) - at
            value = _address(values, table, at, kv_head)
            weights = scratch.weights[:, at - begin :]
            _add_values(num_queries, value, values.strides[1], count, weights, scratch.sums)
            at += count
    _write(task, num_queries, scratch, out)


@njit(error_model="numpy")
def _block_len(span_len: int) -> int:
    """Return how many positions the softmax takes at once: whole spans, about BLOCK."""
    return max(1, BLOCK // span_len) * span_len


@njit(error_model="numpy")
def _address(array: Floats, table: Ints, position: int, kv_head: int) -> int:
    """Return where the key or value of a position lies."""
    span, slot = np.int64(table[position // array.shape[1]]), position % array.shape[1]
    address: int = array.ctypes.data + (
        span * array.strides[0] + slot * array.strides[1] + kv_head * array.strides[2]
    )
    return address


@njit(fastmath=_REORDER, error_model="numpy")
def _score(
    task: Task,
    query: Floats,
    key: int,
    stride: int,
    count: int,
    scale: np.float32,
    weights: Floats,
) -> None:
    """Write weights[n, j] = scale * query n . key j for all queries of the task, `count` keys.

    Four queries by two keys at a time, so that eight sums are in flight and a loaded number serves
    several products; queries that are left over take four keys at a time.
    """
    heads, size = task.last_head - task.head, query.shape[2]
    num_queries = (task.stop - task.start) * heads
    full = num_queries - num_queries % 4
    for n in range(0, full, 4):
        q0 = query[task.start + n // heads, task.head + n % heads]
        q1 = query[task.start + (n + 1) // heads, task.head + (n + 1) % heads]
        q2 = query[task.start + (n + 2) // heads, task.head + (n + 2) % heads]
        q3 = query[task.start + (n + 3) // heads, task.head + (n + 3) % heads]
        for j in range(0, count, 2):
            i = min(j + 1, count - 1)  # an odd last key is computed twice
            k, m = floats_at(key + j * stride, size), floats_at(key + i * stride, size)
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = _ZERO
            for d in range(size):
                a0 += q0[d] * k[d]
                a1 += q1[d] * k[d]
                a2 += q2[d] * k[d]
                a3 += q3[d] * k[d]
                b0 += q0[d] * m[d]
                b1 += q1[d] * m[d]
                b2 += q2[d] * m[d]
                b3 += q3[d] * m[d]
            weights[n, j], weights[n, i] = a0 * scale, b0 * scale
            weights[n + 1, j], weights[n + 1, i] = a1 * scale, b1 * scale
            weights[n + 2, j], weights[n + 2, i] = a2 * scale, b2 * scale
            weights[n + 3, j], weights[n + 3, i] = a3 * scale, b3 * scale
    for n in range(full, num_queries):
        q = query[task.start + n // heads, task.head + n % heads]
        for j in range(0, count, 4):
            j1, j2, j3 = _next_three(j, count)
            k0, k1 = floats_at(key + j * stride, size), floats_at(key + j1 * stride, size)
            k2, k3 = floats_at(key + j2 * stride, size), floats_at(key + j3 * stride, size)
            a0 = a1 = a2 = a3 = _ZERO
            for d in range(size):
                a0 += q[d] * k0[d]
                a1 += q[d] * k1[d]
                a2 += q[d] * k2[d]
                a3 += q[d] * k3[d]
            weights[n, j], weights[n, j1] = a0 * scale, a1 * scale
            weights[n, j2], weights[n, j3] = a2 * scale, a3 * scale


@njit(error_model="numpy")
def _next_three(j: int, count: int) -> tuple[int, int, int]:
    """Return the three numbers after j, none of them past the last of `count`."""
    return min(j + 1, count - 1), min(j + 2, count - 1), min(j + 3, count - 1)


@njit(error_model="numpy")
def _soften(
    n: int,
    seen: tuple[int, int],
    count: int,
    now: int,
    softmax: Softmax,
    head: int,
    scratch: Scratch,
) -> None:
    """Turn the scores of query n into weights e**(score - peak), 0 outside `seen`.

    A new peak scales down what the query has gathered so far.
    """
    row = scratch.weights[n]
    first, stop = seen
    if stop <= first:
        row[:count] = 0
        return
    row[:first] = 0
    row[stop:count] = 0
    scores = row[first:stop]
    if softmax.softcap > 0:
        inverse = _ONE / softmax.softcap
        for j in range(len(scores)):
            scores[j] = softmax.softcap * tanh(scores[j] * inverse)
    if len(softmax.slopes) > 0:
        slope = softmax.slopes[head]
        for j in range(len(scores)):
            scores[j] += slope * np.float32(first + j - now)
    before = scratch.peak[n]
    peak = max(before, _largest(scores))
    for j in range(len(scores)):
        scores[j] = exp(scores[j] - peak)
    if peak > before:
        kept = exp(before - peak)
        scratch.peak[n] = peak
        scratch.total[n] *= kept
        # A loop: `sums[n] *= kept` has Numba compile what checks and reports shapes, 3 s of 9.
        sums = scratch.sums[n]
        for e in range(len(sums)):
            sums[e] *= kept
    scratch.total[n] += _total(scores)


@njit(fastmath=_ORDERED, error_model="numpy")
def _largest(numbers: Floats) -> np.float32:
    largest: np.float32 = numbers[0]
    for i in range(len(numbers)):
        largest = max(largest, numbers[i])
    return largest


@njit(fastmath=_REORDER, error_model="numpy")
def _total(numbers: Floats) -> np.float32:
    total = _ZERO
    for i in range(len(numbers)):
        total += numbers[i]
    return total


@njit(fastmath=_REORDER, error_model="numpy")
def _add_values(
    num_queries: int, value: int, stride: int, count: int, weights: Floats, sums: Floats
) -> None:
    """Add weights[n, j] * value j to sums[n] for every query, four values at a time."""
    size = sums.shape[1]
    for j in range(0, count, 4):
        j1, j2, j3 = _next_three(j, count)
        v0, v1 = floats_at(value + j * stride, size), floats_at(value + j1 * stride, size)
        v2, v3 = floats_at(value + j2 * stride, size), floats_at(value + j3 * stride, size)
        for n in range(num_queries):
            w0, row = weights[n, j], sums[n]
            w1 = weights[n, j1] if j1 > j else _ZERO
            w2 = weights[n, j2] if j2 > j1 else _ZERO
            w3 = weights[n, j3] if j3 > j2 else _ZERO
            for e in range(size):
                row[e] += w0 * v0[e] + w1 * v1[e] + w2 * v2[e] + w3 * v3[e]


@njit(error_model="numpy")
def _write(task: Task, num_queries: int, scratch: Scratch, out: Floats) -> None:
    """Divide the sums by the totals, into the rows and heads of the task."""
    heads = task.last_head - task.head
    for n in range(num_queries):
        row = out[task.start + n // heads, task.head + n % heads]
        inverse = _ONE / scratch.total[n]
        for e in range(len(row)):
            row[e] = scratch.sums[n, e] * inverse
