"""A block of up to 64 tokens, as attention goes over it: keys, scores, softmax, values.

Keys and values come from the spans once, in whatever format, and lie as float32 in the order in
which products read weights (`kv_tile`); scores and sums are GEMMs (`attend_gemm`). A few queries
read them where they lie (`few_queries`). The softmax in between is accumulated online (Milakov &
Gimelshein, 2018), so that scores never leave the cache.

Masked positions never get a score of -inf; they are left out of the loops. No special values come
into the arithmetic, and slots that no query may see are never read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.attention.attention_plan import MAX_QUERIES
from spaninfer_kernels_cpu.attention.kv_tile import (
    PIECE_BYTES,
    TOKENS,
    transpose_keys,
    widen_values,
)
from spaninfer_kernels_cpu.attention.score_vectors import (
    NOTHING_SEEN,
    TOGETHER,
    add_totals,
    find_peaks,
    keep_only,
    total,
)
from spaninfer_kernels_cpu.attention.spans import CacheArrays, place_of
from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.device_function import (
    device_function,
    host_device_function,
)
from spaninfer_kernels_cpu.codegen.elements import (
    FLOAT32,
    Element,
    larger,
    read,
    read_index,
    read_int64,
    smaller,
    write,
)
from spaninfer_kernels_cpu.codegen.exponential import exp, tanh
from spaninfer_kernels_cpu.codegen.rounding import nearest_bf16
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, LANES, PANEL, STEP_BYTES

Floats = NDArray[np.float32]

_SPARE_ROWS = 16  # tiles of several rows write past the last query; all parts stay on cache lines
_CACHE_LINE = 64
_PART_GRID = 2 * STEP_BYTES  # zeros and scales of 64 keys
_ZERO = np.float32(0)
_ONE = np.float32(1)


class Softmax(NamedTuple):
    """`attention.Scores` for kernels; 0 is None, slopes[H], sinks[H] and biases[H 2R+1] are
    addresses, `reach` is R.
    """

    scale: np.float32
    softcap: np.float32
    window: int
    slopes: int
    sinks: int
    rounded: bool
    ahead: int
    biases: int
    reach: int


class Task(NamedTuple):
    """Rows from `row` on times heads from `head` on, N queries; tokens [begin, end) of a request.

    `part` is the number of the first row's part, -1 where there is but one; `ahead`: tokens behind
    its own that a row sees at least.
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
    ahead: int


class Block(NamedTuple):
    """Tokens [begin, begin + num_keys) of a request."""

    begin: int
    num_keys: int


class Scratch(NamedTuple):
    """Addresses of what a task keeps of N queries and the 64 tokens of a block, float32.

    queries[N D], scores[N 64], sums[N 64 ceil(E / 64)]; peak, total and kept[N], the factor that a
    new peak puts on older sums; keys[D 64], values[ceil(E / 64) 64 64], grid[2 2 64]: zeros and
    scales of both parts of keys; and rows[3 64], addresses (int64) of keys, values and the values'
    scales.
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


class Extent(NamedTuple):
    """N queries, D channels of a key or E of a value, and the tokens of a block."""

    num_queries: int
    size: int
    num_keys: int


@host_device_function
def scratch_at(memory: int, key_size: int, value_size: int) -> tuple[Scratch, int]:
    """Return the addresses from `memory` on, and how many bytes that takes, wherever it begins."""
    rows = (MAX_QUERIES + _SPARE_ROWS) * 4
    panels = (value_size + PANEL - 1) // PANEL
    queries = (memory + _CACHE_LINE - 1) // _CACHE_LINE * _CACHE_LINE
    scores = queries + rows * key_size
    sums = scores + rows * PANEL
    peak = sums + rows * PANEL * panels
    total = peak + rows
    kept = total + rows
    keys = kept + rows
    values = keys + key_size * STEP_BYTES
    grid = values + panels * PANEL * STEP_BYTES
    addresses = grid + 2 * _PART_GRID
    end = addresses + 3 * PANEL * 8
    scratch = Scratch(queries, scores, sums, peak, total, kept, keys, values, grid, addresses)
    return scratch, end - memory + _CACHE_LINE - 1


# ---- keys and values ---------------------------------------------------------------------------


class Place(NamedTuple):
    """A token's slot in a span, and the head whose key and value are read."""

    span: int
    slot: int
    kv_head: int


@device_function
def find_rows(
    table: int, spans: CacheArrays, kv_head: int, begin: int, count: int, scratch: Scratch
) -> None:
    """Write where keys and values of `count` tokens lie; keys up to a whole 16, the last again."""
    token, index, slot = 0, begin // spans.span_len, begin % spans.span_len
    while token < count:
        stop = smaller(count, token + spans.span_len - slot)
        place = Place(read_index(table, index), slot, kv_head)
        _note_rows(token, stop, spans, place, scratch)
        token, index, slot = stop, index + 1, 0
    _repeat_last(count, scratch)


@device_function
def find_selected(
    positions: int, table: int, spans: CacheArrays, kv_head: int, count: int, scratch: Scratch
) -> None:
    """Write the same of the tokens at positions[count] (int32) of a request."""
    for token in range(count):
        position = read_index(positions, token)
        span = read_index(table, position // spans.span_len)
        place = Place(span, position % spans.span_len, kv_head)
        _note_rows(token, token + 1, spans, place, scratch)
    _repeat_last(count, scratch)


@device_function
def _note_rows(first: int, stop: int, spans: CacheArrays, place: Place, scratch: Scratch) -> None:
    """Write where keys and values of a block's tokens lie, which are neighbours from `place` on; of
    codes also where the values' scales do, and the scales of the keys.
    """
    span, slot, kv_head = place
    places = numbers_at(scratch.rows, 3 * PANEL, np.int64)
    key = place_of(spans.keys, span, slot, kv_head)
    value = place_of(spans.values, span, slot, kv_head)
    for token in range(first, stop):
        places[token] = key + (token - first) * spans.keys.token
        places[PANEL + token] = value + (token - first) * spans.values.token
    if spans.value_scales.address != 0:
        grid = place_of(spans.value_scales, span, slot, kv_head)
        for token in range(first, stop):
            places[2 * PANEL + token] = grid + (token - first) * spans.value_scales.token
    if spans.key_scales.address != 0:
        for token in range(first, stop):
            scales = place_of(spans.key_scales, span, slot + token - first, kv_head)
            for number in range(2 if spans.key_split == spans.key_size else 4):
                into = scratch.grid + number * STEP_BYTES
                write(FLOAT32, into, token, read(FLOAT32, scales, number))


@device_function
def _repeat_last(count: int, scratch: Scratch) -> None:
    """Fill up to a whole 16 keys."""
    keys = numbers_at(scratch.rows, PANEL, np.int64)
    for token in range(count, (count + TOKENS - 1) // TOKENS * TOKENS):
        keys[token] = keys[count - 1]


@device_function
def load_keys(kind: Element, spans: CacheArrays, count: int, scratch: Scratch) -> None:
    """Write keys[D 64] of a block, channel after channel."""
    for part in range(1 if spans.key_split == spans.key_size else 2):
        first = spans.key_split * part
        size = spans.key_split if part == 0 else spans.key_size - first
        _load_part(kind, first, size, count, scratch.grid + _PART_GRID * part, scratch)


@device_function
def _load_part(
    kind: Element, start: int, size: int, count: int, part_grid: int, scratch: Scratch
) -> None:
    """Write the channels of keys that have their zeros and scales at `part_grid`."""
    per_piece = PIECE_BYTES * 8 // kind.bits
    whole = size // per_piece
    for token in range(0, count, TOKENS):
        rows, grid = scratch.rows + token * 8, part_grid + token * 4
        into = scratch.keys + start * STEP_BYTES + token * 4
        for piece in range(whole):
            out = into + piece * per_piece * STEP_BYTES
            offset = start * kind.bits // 8 + piece * PIECE_BYTES
            transpose_keys(kind, rows, offset, grid, out)
    for token in range(count):
        row = read_int64(scratch.rows, token)
        zero = read(FLOAT32, part_grid, token)
        scale = read(FLOAT32, part_grid + STEP_BYTES, token)
        for channel in range(start + whole * per_piece, start + size):
            number = read(kind, row, channel)
            if kind.is_quantised:
                number = (number - zero) * scale
            write(FLOAT32, scratch.keys + channel * STEP_BYTES, token, number)


@device_function
def load_values(kind: Element, spans: CacheArrays, count: int, scratch: Scratch) -> None:
    """Write values[ceil(E / 64) 64 64] of a block, 64 channels of every token after each other."""
    whole = spans.value_size // LANES
    for token in range(count):
        row = read_int64(scratch.rows, PANEL + token)
        grid = read_int64(scratch.rows, 2 * PANEL + token)
        into = scratch.values + token * STEP_BYTES
        for block in range(whole):
            panel, place = block // (PANEL // LANES), block % (PANEL // LANES)
            out = into + panel * PANEL * STEP_BYTES + place * BLOCK_BYTES
            widen_values(kind, row + block * LANES * kind.bits // 8, grid, out)
        for channel in range(whole * LANES, spans.value_size):
            number = read(kind, row, channel)
            if kind.is_quantised:
                number = (number - read(FLOAT32, grid, 0)) * read(FLOAT32, grid, 1)
            panel, place = channel // PANEL, channel % PANEL
            write(FLOAT32, into + panel * PANEL * STEP_BYTES, place, number)


@device_function
def sees_all(begin: int, count: int, task: Task, softmax: Softmax) -> bool:
    """Return True if all queries see all keys of a block, and nothing is added to their scores."""
    plain = softmax.softcap == 0 and softmax.window == 0 and softmax.slopes == 0
    last = task.position - begin + larger(softmax.ahead, task.ahead)  # that the first query sees
    return plain and softmax.biases == 0 and last + 1 >= count


@device_function
def soften(begin: int, count: int, task: Task, softmax: Softmax, scratch: Scratch) -> None:
    """Turn the scores of all queries into weights e**(score - peak), 0 where one does not see."""
    if sees_all(begin, count, task, softmax):
        together = task.num_queries // TOGETHER * TOGETHER
        for n in range(0, together, TOGETHER):
            _weigh_together(n, count, scratch)
        for n in range(together, task.num_queries):
            _weigh(n, 0, count, scratch)
    else:
        for n in range(task.num_queries):
            _soften_row(n, begin, count, task, softmax, scratch)


@device_function
def _soften_row(
    n: int, begin: int, count: int, task: Task, softmax: Softmax, scratch: Scratch
) -> None:
    """Soften the scores of query n."""
    first, stop = seen_keys(n, Block(begin, count), task, softmax)
    row = scratch.scores + n * STEP_BYTES
    if stop <= first:
        floats_at(row, count)[:] = 0
        write(FLOAT32, scratch.kept, n, _ONE)
        return
    adjust(floats_at(row + first * 4, stop - first), n, begin + first, task, softmax)
    _weigh(n, first, stop, scratch)
    keep_only(row, first, stop, _ZERO)


@device_function
def seen_keys(n: int, block: Block, task: Task, softmax: Softmax) -> tuple[int, int]:
    """Return the first and the end of the keys of a block that query n sees; none: no larger."""
    now = task.position + n // task.num_heads - block.begin  # the query's, seen from the block
    first = larger(0, now - softmax.window + 1) if softmax.window > 0 else 0
    return first, smaller(block.num_keys, now + 1 + larger(softmax.ahead, task.ahead))


@device_function
def adjust(scores: Floats, n: int, position: int, task: Task, softmax: Softmax) -> None:
    """Cap the scores of query n and keys from `position` on, and add what is added to them."""
    head, distance = task.head + n % task.num_heads, position - task.position - n // task.num_heads
    if softmax.softcap > 0:
        inverse = _ONE / softmax.softcap
        for j in range(len(scores)):
            scores[j] = softmax.softcap * tanh(scores[j] * inverse)
    if softmax.slopes != 0:
        slope = read(FLOAT32, softmax.slopes, head)
        if softmax.rounded:
            for j in range(len(scores)):
                place = nearest_bf16(np.float32(position + j))
                scores[j] += softmax.scale * nearest_bf16(slope * place)
        else:
            for j in range(len(scores)):
                scores[j] += slope * np.float32(distance + j)
    if softmax.biases != 0:
        _add_biases(scores, head, distance, softmax)


@device_function
def _weigh(n: int, first: int, stop: int, scratch: Scratch) -> None:
    """Write weights of 64 scores of query n, of which it sees those from `first` to `stop`.

    A new peak scales down what the query has gathered so far. The loops always go over all 64,
    without branches, and a row has the same sums however it is masked: what is hidden adds 1e-38 to
    a total that is 1 or more.
    """
    at = scratch.scores + n * STEP_BYTES
    scores = floats_at(at, PANEL)
    if stop - first < PANEL:
        keep_only(at, first, stop, NOTHING_SEEN)
    before = read(FLOAT32, scratch.peak, n)
    largest = scores[0]
    for j in range(PANEL):
        largest = larger(largest, scores[j])
    peak = larger(before, largest)
    for j in range(PANEL):
        scores[j] = exp(scores[j] - peak)
    kept = exp(before - peak)
    write(FLOAT32, scratch.peak, n, peak)
    write(FLOAT32, scratch.kept, n, kept)
    write(FLOAT32, scratch.total, n, read(FLOAT32, scratch.total, n) * kept + total(at))


@device_function
def _weigh_together(n: int, count: int, scratch: Scratch) -> None:
    """Do as `_weigh` for TOGETHER queries from n on that see `count` scores: the same bits.

    What is hidden is left out in registers: written over in memory, it would hold up those who read
    it next. So blocks of 16 that are all hidden are not taken, and hidden scores end as anything.
    Texts of 36 tokens by heads of 32 channels attend in 0.7 of the time (one core of a Zen 5).
    """
    at, blocks = scratch.scores + n * STEP_BYTES, (count + LANES - 1) // LANES
    find_peaks(at, count, scratch.peak + n * 4, scratch.kept + n * 4)
    for row in range(TOGETHER):
        peak = read(FLOAT32, scratch.peak, n + row)
        for block in range(blocks):
            scores = floats_at(at + row * STEP_BYTES + block * BLOCK_BYTES, LANES)
            for j in range(LANES):
                scores[j] = exp(scores[j] - peak)
    kept = floats_at(scratch.kept + n * 4, TOGETHER)
    for row in range(TOGETHER):
        kept[row] = exp(kept[row])
    add_totals(at, count, scratch.total + n * 4, scratch.kept + n * 4)


@device_function
def _add_biases(scores: Floats, head: int, distance: int, softmax: Softmax) -> None:
    """Add the biases of a head to scores, the first of which is of a key at `distance`."""
    reach = softmax.reach
    biases = floats_at(softmax.biases + head * (2 * reach + 1) * 4, 2 * reach + 1)
    for j in range(len(scores)):
        scores[j] += biases[reach + larger(-reach, smaller(reach, distance + j))]
