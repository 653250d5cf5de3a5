"""Attention over spans, for Numba functions to call; `attention` describes and checks arguments.

A task is an item of `attention_plan` (neighbouring rows of one request and a chunk of its tokens)
times the query heads that share a key head. It goes over its tokens in blocks of 64: keys and
values come from the spans once, in whatever format, and lie as float32 in the order in which
products read weights (`cached`); scores and sums are products (`tiles`), and the softmax in
between is accumulated online (Milakov & Gimelshein, 2018), so that scores never leave the cache.

Masked positions never get a score of -inf; they are left out of the loops. That keeps the
arithmetic free of special values, and slots that no query may see are never read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from spaninfer_kernels_cpu.attention_plan import ITEM_NUMBERS, QUERIES
from spaninfer_kernels_cpu.cached import PIECE_BYTES, TOKENS, transpose_keys, widen_values
from spaninfer_kernels_cpu.elements import (
    FLOAT32,
    Element,
    read,
    read_address,
    read_index,
    write,
)
from spaninfer_kernels_cpu.exponential import exp, tanh
from spaninfer_kernels_cpu.layout import BLOCK_BYTES, LANES, PANEL, STEP_BYTES
from spaninfer_kernels_cpu.pointer import floats_at, numbers_at
from spaninfer_kernels_cpu.products_kernel import multiply
from spaninfer_kernels_cpu.recipe import Recipe
from spaninfer_kernels_cpu.spans import Spans, place_of
from spaninfer_kernels_cpu.tiles import add_tile, row_addresses, store_tile

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

SPARE_ROWS = 16  # tiles of several rows write past the last query; all parts stay on cache lines
CACHE_LINE = 64
PART_NUMBERS = 2  # peak and total, in front of the sums of a part

_NOTHING_SEEN = np.float32(-3e38)  # the peak before the first score: finite, so exp() stays so
_ZERO = np.float32(0)
_ONE = np.float32(1)

_REORDER = {"contract", "reassoc", "nsz", "arcp"}  # sums may go by lanes; NaN and inf still hold
_ORDERED = _REORDER | {"nnan"}  # a maximum only becomes vector code where NaN need not win


class Attention(NamedTuple):
    """Rows query[T H D] and out[T H E], float32, and what of them to compute. Addresses in bytes.

    Heads of a query lie side by side, rows `query_stride` bytes apart; `out` has no gaps. `items`
    are those of `attention_plan`; row r of the span tables (int32) begins r * table_stride bytes
    into `tables`; `parts` is memory for `part_bytes` times the parts of the plan.
    """

    query: int
    query_stride: int
    out: int
    heads: int
    items: int
    num_items: int
    tables: int
    table_stride: int
    parts: int


class Softmax(NamedTuple):
    """The numbers of `attention.Scores`; 0 is None, slopes[H] and sinks[H] are addresses."""

    scale: np.float32
    softcap: np.float32
    window: int
    slopes: int
    sinks: int


class Task(NamedTuple):
    """Rows from `row` on times heads from `head` on, N queries; tokens [begin, end) of a request.

    `part` is the number of the first row's part, -1 where there is but one.
    """

    row: int
    head: int
    num_heads: int
    num_queries: int
    position: int
    begin: int
    end: int
    table: int
    part: int


class Scratch(NamedTuple):
    """Addresses of what a task keeps of N queries and the 64 tokens of a block, float32.

    queries[N D], scores[N 64], sums[N 64 ceil(E / 64)]; peak, total and kept[N], the factor that a
    new peak puts on older sums; keys[D 64], values[ceil(E / 64) 64 64], grid[2 64]: zeros and
    scales of keys; and rows[3 64], addresses (int64) of keys, values and the values' scales.
    """

    queries: int
    scores: int
    sums: int
    peak: int
    total: int
    kept: int
    keys: int
    values: int
    grid: int
    rows: int


@njit(error_model="numpy")
def scratch_bytes(key_size: int, value_size: int) -> int:
    """Return how much memory a caller of `attend_task` lends."""
    return _scratch(0, key_size, value_size)[1]


@njit(error_model="numpy")
def part_bytes(heads: int, value_size: int) -> int:
    """Return the bytes of a part: of one row and all heads, peaks, totals and sums."""
    return heads * (value_size + PART_NUMBERS) * 4


@njit(inline="always", error_model="numpy")
def head_tasks(heads: int, kv_heads: int) -> int:
    """Return how many tasks every item of the plan is: one, or a few, per key head."""
    group = heads // kv_heads
    return kv_heads * ((group + QUERIES - 1) // QUERIES)


@njit(inline="always", error_model="numpy")
def attend_task(
    kind: Element,
    one: Recipe,
    many: Recipe,
    number: int,
    unit: int,
    attention: Attention,
    spans: Spans,
    softmax: Softmax,
    memory: int,
) -> None:
    """Do task `unit` of `head_tasks` of item `number`, over keys and values of a kind.

    `one` and `many` are the recipes of float32 for one row and for several; at `memory` are
    `scratch_bytes` that this caller alone uses.
    """
    scratch, _ = _scratch(memory, spans.key_size, spans.value_size)
    group = attention.heads // spans.kv_heads
    per_head = head_tasks(attention.heads, spans.kv_heads) // spans.kv_heads
    head = unit // per_head * group + unit % per_head * QUERIES
    num_heads = min(QUERIES, group - unit % per_head * QUERIES)
    item = attention.items + number * ITEM_NUMBERS * 4
    task = _task(item, head, num_heads, attention, softmax.window)
    _attend(kind, one, many, task, attention, spans, softmax, scratch)


@njit(error_model="numpy")
def merge_task(number: int, attention: Attention, value_size: int, sinks: int) -> None:
    """Join the parts of the rows of which item `number` is the first part, if it is one.

    Once all tasks of `attend_task` are done. sinks[H] (float32) may be 0.
    """
    item = attention.items + number * ITEM_NUMBERS * 4
    rows, pieces = read_index(item, 1) - read_index(item, 0), read_index(item, 7)
    if pieces < 2:
        return
    record = (value_size + PART_NUMBERS) * 4
    units = rows * attention.heads
    for unit in range(units):
        first = attention.parts + (read_index(item, 6) * attention.heads + unit) * record
        out = attention.out + (read_index(item, 0) * attention.heads + unit) * value_size * 4
        sink = _sink(sinks, unit % attention.heads)
        _merge(first, units * record, pieces, value_size, sink, out)


@njit(error_model="numpy")
def _merge(first: int, stride: int, pieces: int, size: int, sink: np.float32, out: int) -> None:
    """Write the softmax's mean of values whose parts lie `stride` bytes apart."""
    peak, total = sink, _ZERO
    for piece in range(pieces):
        peak = max(peak, read(FLOAT32, first + piece * stride, 0))
    for e in range(size):
        write(FLOAT32, out, e, _ZERO)
    for piece in range(pieces):
        record = first + piece * stride
        weight = exp(read(FLOAT32, record, 0) - peak)
        total += weight * read(FLOAT32, record, 1)
        sums = record + PART_NUMBERS * 4
        for e in range(size):
            write(FLOAT32, out, e, read(FLOAT32, out, e) + weight * read(FLOAT32, sums, e))
    inverse = _ONE / (total + (exp(sink - peak) if sink > _NOTHING_SEEN else _ZERO))
    for e in range(size):
        write(FLOAT32, out, e, read(FLOAT32, out, e) * inverse)


@njit(error_model="numpy")
def _sink(sinks: int, head: int) -> np.float32:
    return read(FLOAT32, sinks, head) if sinks != 0 else _NOTHING_SEEN


# ---- tasks -------------------------------------------------------------------------------------


@njit(inline="always", error_model="numpy")
def _task(item: int, head: int, num_heads: int, attention: Attention, window: int) -> Task:
    row, position = read_index(item, 0), read_index(item, 3)
    seen_from = max(0, position - window + 1) if window > 0 else 0
    return Task(
        row,
        head,
        num_heads,
        (read_index(item, 1) - row) * num_heads,
        position,
        max(read_index(item, 4), seen_from),
        read_index(item, 5),
        attention.tables + read_index(item, 2) * attention.table_stride,
        read_index(item, 6),
    )


@njit(error_model="numpy")
def _scratch(memory: int, key_size: int, value_size: int) -> tuple[Scratch, int]:
    """Return the addresses from `memory` on, and how many bytes that takes, wherever it begins."""
    rows = (QUERIES + SPARE_ROWS) * 4
    panels = (value_size + PANEL - 1) // PANEL
    queries = (memory + CACHE_LINE - 1) // CACHE_LINE * CACHE_LINE
    scores = queries + rows * key_size
    sums = scores + rows * PANEL
    peak = sums + rows * PANEL * panels
    total = peak + rows
    kept = total + rows
    keys = kept + rows
    values = keys + key_size * STEP_BYTES
    grid = values + panels * PANEL * STEP_BYTES
    addresses = grid + 2 * STEP_BYTES
    end = addresses + 3 * PANEL * 8
    scratch = Scratch(queries, scores, sums, peak, total, kept, keys, values, grid, addresses)
    return scratch, end - memory + CACHE_LINE - 1


@njit(inline="always", error_model="numpy")
def _attend(
    kind: Element,
    one: Recipe,
    many: Recipe,
    task: Task,
    attention: Attention,
    spans: Spans,
    softmax: Softmax,
    scratch: Scratch,
) -> None:
    """Do a task in one pass over its tokens."""
    kv_head = task.head // (attention.heads // spans.kv_heads)
    _start(task, attention, spans, softmax.scale, scratch)
    begin = task.begin
    while begin < task.end:
        count = min(PANEL, task.end - begin)
        _find_rows(task.table, spans, kv_head, begin, count, scratch)
        _load_keys(kind, spans, count, scratch)
        _score(one, many, task.num_queries, spans.key_size, count, scratch)
        for n in range(task.num_queries):
            _soften(n, begin, count, task, softmax, scratch)
        _load_values(kind, spans, count, scratch)
        _add_values(one, many, task.num_queries, spans.value_size, count, scratch)
        begin += count
    _finish(task, attention, spans.value_size, softmax.sinks, scratch)


@njit(error_model="numpy")
def _start(
    task: Task, attention: Attention, spans: Spans, scale: np.float32, scratch: Scratch
) -> None:
    """Copy the queries, scaled, and clear what is accumulated."""
    size = spans.key_size
    width = (spans.value_size + PANEL - 1) // PANEL * PANEL
    for n in range(task.num_queries):
        row, head = task.row + n // task.num_heads, task.head + n % task.num_heads
        source = attention.query + row * attention.query_stride + head * size * 4
        into = scratch.queries + n * size * 4
        for i in range(size):
            write(FLOAT32, into, i, read(FLOAT32, source, i) * scale)
        write(FLOAT32, scratch.peak, n, _NOTHING_SEEN)
        write(FLOAT32, scratch.total, n, _ZERO)
    for i in range(task.num_queries * width):
        write(FLOAT32, scratch.sums, i, _ZERO)


# ---- keys and values ---------------------------------------------------------------------------


@njit(error_model="numpy")
def _find_rows(
    table: int, spans: Spans, kv_head: int, begin: int, count: int, scratch: Scratch
) -> None:
    """Write where keys and values of `count` tokens lie; keys up to a whole 16, the last again."""
    keys = numbers_at(scratch.rows, PANEL, np.int64)
    values = numbers_at(scratch.rows + PANEL * 8, PANEL, np.int64)
    grids = numbers_at(scratch.rows + PANEL * 16, PANEL, np.int64)
    index, slot = begin // spans.span_len, begin % spans.span_len
    span = read_index(table, index)
    for token in range(count):
        if slot == spans.span_len:
            index, slot = index + 1, 0
            span = read_index(table, index)
        keys[token] = place_of(spans.keys, span, slot, kv_head)
        values[token] = place_of(spans.values, span, slot, kv_head)
        grids[token] = place_of(spans.value_scales, span, slot, kv_head)
        if spans.key_scales.address != 0:
            scales = place_of(spans.key_scales, span, slot, kv_head)
            write(FLOAT32, scratch.grid, token, read(FLOAT32, scales, 0))
            write(FLOAT32, scratch.grid + STEP_BYTES, token, read(FLOAT32, scales, 1))
        slot += 1
    for token in range(count, (count + TOKENS - 1) // TOKENS * TOKENS):
        keys[token] = keys[count - 1]


@njit(error_model="numpy")
def _load_keys(kind: Element, spans: Spans, count: int, scratch: Scratch) -> None:
    """Write keys[D 64] of a block, channel after channel."""
    per_piece = PIECE_BYTES * 8 // kind.bits
    whole = spans.key_size // per_piece
    for token in range(0, count, TOKENS):
        rows, grid = scratch.rows + token * 8, scratch.grid + token * 4
        into = scratch.keys + token * 4
        for piece in range(whole):
            out = into + piece * per_piece * STEP_BYTES
            transpose_keys(kind, rows, piece * PIECE_BYTES, grid, out)
    for token in range(count):
        row = read_address(scratch.rows, token)
        zero = read(FLOAT32, scratch.grid, token)
        scale = read(FLOAT32, scratch.grid + STEP_BYTES, token)
        for channel in range(whole * per_piece, spans.key_size):
            number = read(kind, row, channel)
            if kind.is_code:
                number = (number - zero) * scale
            write(FLOAT32, scratch.keys + channel * STEP_BYTES, token, number)


@njit(error_model="numpy")
def _load_values(kind: Element, spans: Spans, count: int, scratch: Scratch) -> None:
    """Write values[ceil(E / 64) 64 64] of a block, 64 channels of every token after each other."""
    whole = spans.value_size // LANES
    for token in range(count):
        row = read_address(scratch.rows, PANEL + token)
        grid = read_address(scratch.rows, 2 * PANEL + token)
        into = scratch.values + token * STEP_BYTES
        for block in range(whole):
            panel, place = block // (PANEL // LANES), block % (PANEL // LANES)
            out = into + panel * PANEL * STEP_BYTES + place * BLOCK_BYTES
            widen_values(kind, row + block * LANES * kind.bits // 8, grid, out)
        for channel in range(whole * LANES, spans.value_size):
            number = read(kind, row, channel)
            if kind.is_code:
                number = (number - read(FLOAT32, grid, 0)) * read(FLOAT32, grid, 1)
            panel, place = channel // PANEL, channel % PANEL
            write(FLOAT32, into + panel * PANEL * STEP_BYTES, place, number)


# ---- products ----------------------------------------------------------------------------------


@njit(inline="always", error_model="numpy")
def _score(
    one: Recipe, many: Recipe, num_queries: int, size: int, count: int, scratch: Scratch
) -> None:
    """Write scores[N 64] of all queries and `count` keys."""
    for first in range(0, num_queries, many.rows):
        if first + 1 == num_queries:
            _score_tile(one, first, num_queries, size, count, scratch)
        else:
            _score_tile(many, first, num_queries, size, count, scratch)


@njit(inline="always", error_model="numpy")
def _score_tile(
    recipe: Recipe, first: int, num_queries: int, size: int, count: int, scratch: Scratch
) -> None:
    address, stride = scratch.queries + first * size * 4, size * 4
    rows: Any = row_addresses(recipe, address, stride, num_queries - 1 - first)
    for block in range(0, (count + LANES - 1) // LANES, recipe.blocks):
        tile = multiply(recipe, scratch.keys, rows, block, (1, size * STEP_BYTES, 0))
        store_tile(recipe, tile, scratch.scores + first * STEP_BYTES + block * BLOCK_BYTES)


@njit(inline="always", error_model="numpy")
def _add_values(
    one: Recipe, many: Recipe, num_queries: int, size: int, count: int, scratch: Scratch
) -> None:
    """Multiply the sums by `kept` and add the products of weights[N count] and values[count E]."""
    for first in range(0, num_queries, many.rows):
        if first + 1 == num_queries:
            _add_tile(one, first, num_queries, size, count, scratch)
        else:
            _add_tile(many, first, num_queries, size, count, scratch)


@njit(inline="always", error_model="numpy")
def _add_tile(
    recipe: Recipe, first: int, num_queries: int, size: int, count: int, scratch: Scratch
) -> None:
    address = scratch.scores + first * STEP_BYTES
    rows: Any = row_addresses(recipe, address, STEP_BYTES, num_queries - 1 - first)
    panels = (size + PANEL - 1) // PANEL
    stride = panels * STEP_BYTES
    for panel in range(panels):
        values = scratch.values + panel * PANEL * STEP_BYTES
        for block in range(
            0, (min(PANEL, size - panel * PANEL) + LANES - 1) // LANES, recipe.blocks
        ):
            tile = multiply(recipe, values, rows, block, (1, count * STEP_BYTES, 0))
            sums = scratch.sums + first * stride + panel * STEP_BYTES + block * BLOCK_BYTES
            add_tile(recipe, tile, sums, stride, scratch.kept + first * 4)


# ---- softmax -----------------------------------------------------------------------------------


@njit(error_model="numpy")
def _soften(n: int, begin: int, count: int, task: Task, softmax: Softmax, scratch: Scratch) -> None:
    """Turn the scores of query n into weights e**(score - peak), 0 where it does not see.

    A new peak scales down what the query has gathered so far.
    """
    row = floats_at(scratch.scores + n * STEP_BYTES, count)
    now = task.position + n // task.num_heads - begin  # the query's position, seen from `begin`
    first = max(0, now - softmax.window + 1) if softmax.window > 0 else 0
    stop = min(count, now + 1)
    if stop <= first:
        row[:] = 0
        write(FLOAT32, scratch.kept, n, _ONE)
        return
    for j in range(first):
        row[j] = 0
    for j in range(stop, count):
        row[j] = 0
    scores = floats_at(scratch.scores + n * STEP_BYTES + first * 4, stop - first)
    if softmax.softcap > 0:
        inverse = _ONE / softmax.softcap
        for j in range(len(scores)):
            scores[j] = softmax.softcap * tanh(scores[j] * inverse)
    if softmax.slopes != 0:
        slope = read(FLOAT32, softmax.slopes, task.head + n % task.num_heads)
        for j in range(len(scores)):
            scores[j] += slope * np.float32(first + j - now)
    before = read(FLOAT32, scratch.peak, n)
    peak = max(before, _largest(scores))
    for j in range(len(scores)):
        scores[j] = exp(scores[j] - peak)
    kept = exp(before - peak)
    write(FLOAT32, scratch.peak, n, peak)
    write(FLOAT32, scratch.kept, n, kept)
    write(FLOAT32, scratch.total, n, read(FLOAT32, scratch.total, n) * kept + _total(scores))


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


@njit(error_model="numpy")
def _finish(task: Task, attention: Attention, size: int, sinks: int, scratch: Scratch) -> None:
    """Divide the sums by the totals, into `out`; or write the task's parts, undivided."""
    width = (size + PANEL - 1) // PANEL * STEP_BYTES
    for n in range(task.num_queries):
        row, head = n // task.num_heads, task.head + n % task.num_heads
        total, peak = read(FLOAT32, scratch.total, n), read(FLOAT32, scratch.peak, n)
        if task.part >= 0:
            record = (task.part + row) * attention.heads + head
            out = attention.parts + record * (size + PART_NUMBERS) * 4
            write(FLOAT32, out, 0, peak)
            write(FLOAT32, out, 1, total)
            out += PART_NUMBERS * 4
            factor = _ONE
        else:
            out = attention.out + ((task.row + row) * attention.heads + head) * size * 4
            sink = _sink(sinks, head)
            factor = _ONE / (total + (exp(sink - peak) if sinks != 0 else _ZERO))
        sums = scratch.sums + n * width
        for e in range(size):
            write(FLOAT32, out, e, read(FLOAT32, sums, e) * factor)
