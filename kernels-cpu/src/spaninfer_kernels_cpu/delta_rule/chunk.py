"""The gated delta rule for a chunk of up to 64 tokens, by GEMMs in float32: for prompts.

With G the sums of decays g up to each token, S the state in front, and L the rows below the
diagonal,

    (1 + L[beta exp(G_t - G_i) k_t.k_i]) U = beta (V - exp(G) K S)
    O = exp(G) Q S + (exp(G_t - G_i) q_t.k_i for i <= t) U
    S <- exp(G_last) S + (exp(G_last - G) K)^T U

U are the values that the rule writes for each key, which the recursion gives one by one (Yang et
al. 2024, section 3.3). The triangular system is solved by a few rows at a time: a GEMM for what
the rows above say of them, and substitution among them.

Matrices lie in scratch memory as GEMM reads weights: a panel of 64 columns after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spaninfer_kernels_cpu.attention.kv_tile import PIECE_BYTES, TOKENS, transpose_keys
from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.device_function import device_function, device_function_with
from spaninfer_kernels_cpu.codegen.elements import FLOAT32, read, smaller, write
from spaninfer_kernels_cpu.codegen.exponential import exp
from spaninfer_kernels_cpu.delta_rule.head_task import (
    CHUNK,
    DeltaArguments,
    Head,
    Scratch,
    Token,
    panel_bytes,
    token_at,
    write_unit,
)
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.gemm.tile_gemm import fill_tile
from spaninfer_kernels_cpu.quantisation.layout import PANEL, STEP_BYTES
from spaninfer_kernels_cpu.runtime.call import Matrix, row_at


class Chunk(NamedTuple):
    """Rows from `first` on, that many, of a head."""

    head: Head
    first: int
    length: int


class Panel(NamedTuple):
    """Columns of a head's values from `first` on, and where their panel of the state lies."""

    first: int
    width: int
    state: int


_PIECE = PIECE_BYTES // 4  # channels that are transposed at once


@device_function
def load_state(state: int, size: int, width: int, scratch: Scratch) -> None:
    """Copy a state[size width] to panels; their columns behind the last are zeros."""
    for panel in range((width + PANEL - 1) // PANEL):
        count = smaller(PANEL, width - panel * PANEL)
        for i in range(size):
            row = floats_at(scratch.state + panel * panel_bytes(size) + i * STEP_BYTES, PANEL)
            source = floats_at(state + 4 * (i * width + panel * PANEL), count)
            for j in range(count):
                row[j] = source[j]
            for j in range(count, PANEL):
                row[j] = np.float32(0)


@device_function
def store_state(state: int, size: int, width: int, scratch: Scratch) -> None:
    """Copy panels to a state[size width]."""
    for panel in range((width + PANEL - 1) // PANEL):
        count = smaller(PANEL, width - panel * PANEL)
        for i in range(size):
            source = floats_at(scratch.state + panel * panel_bytes(size) + i * STEP_BYTES, count)
            row = floats_at(state + 4 * (i * width + panel * PANEL), count)
            for j in range(count):
                row[j] = source[j]


@device_function
def take_chunk(
    micro: MicroKernel, arguments: DeltaArguments, chunk: Chunk, scratch: Scratch
) -> None:
    """Write what the state in panels says of the queries of a chunk, and update it."""
    size, width = arguments.key_size, arguments.value_size
    _load_rows(arguments, chunk, scratch)
    _multiply_keys(micro, arguments, chunk, scratch)
    _decay_keys(size, chunk.length, scratch)
    for number in range((width + PANEL - 1) // PANEL):
        first, state = number * PANEL, scratch.state + number * panel_bytes(size)
        panel = Panel(first, smaller(PANEL, width - first), state)
        _begin_written(micro, arguments, chunk, panel, scratch)
        _solve(micro, chunk.length, scratch)
        _write_out(micro, arguments, chunk, panel, scratch)
        _write_state(micro, state, size, chunk.length, scratch)


@device_function
def _token(arguments: DeltaArguments, chunk: Chunk, number: int) -> Token:
    return token_at(arguments, chunk.head, chunk.first + number)


@device_function
def _gate(matrix: Matrix, chunk: Chunk, number: int) -> np.float32:
    """Return g or beta of a token of a chunk."""
    gate: np.float32 = read(FLOAT32, row_at(matrix, chunk.first + number), chunk.head.value)
    return gate


@device_function
def _load_rows(arguments: DeltaArguments, chunk: Chunk, scratch: Scratch) -> None:
    """Write queries and keys of unit length, keys also a column each, and the sums of g."""
    size, count = arguments.key_size, chunk.length
    places = numbers_at(scratch.rows, CHUNK, np.int64)
    sums, total = floats_at(scratch.sums, CHUNK), np.float32(0)
    for i in range(count):
        token = _token(arguments, chunk, i)
        write_unit(token.query, scratch.queries + 4 * i * size, size, arguments.scale)
        places[i] = scratch.keys + 4 * i * size
        write_unit(token.key, scratch.keys + 4 * i * size, size, np.float32(1))
        total += _gate(arguments.g, chunk, i)
        sums[i] = total
    whole_tokens = (count + TOKENS - 1) // TOKENS * TOKENS
    for i in range(count, whole_tokens):
        places[i] = places[count - 1]
    whole = size // _PIECE * _PIECE
    for i in range(0, whole_tokens, TOKENS):
        for channel in range(0, whole, _PIECE):
            out = scratch.turned + channel * STEP_BYTES + 4 * i
            transpose_keys(FLOAT32, scratch.rows + 8 * i, 4 * channel, 0, out)
    for channel in range(whole, size):
        for i in range(count):
            number = read(FLOAT32, scratch.keys, i * size + channel)
            write(FLOAT32, scratch.turned + channel * STEP_BYTES, i, number)


@device_function
def _multiply_keys(
    micro: MicroKernel,
    arguments: DeltaArguments,
    chunk: Chunk,
    scratch: Scratch,
) -> None:
    """Write lower and mixed; zeros where a token comes later, on the diagonal of lower too."""
    size, row_bytes, count = arguments.key_size, 4 * arguments.key_size, chunk.length
    sizes = (1, size * STEP_BYTES, 0)
    for i in range(0, count, micro.rows):
        at, last = i * row_bytes, count - 1 - i
        rows = (scratch.keys + at, row_bytes, last)
        fill_tile(micro, scratch.turned, rows, sizes, scratch.lower + i * STEP_BYTES, (0, 0))
        rows = (scratch.queries + at, row_bytes, last)
        fill_tile(micro, scratch.turned, rows, sizes, scratch.mixed + i * STEP_BYTES, (0, 0))
    sums = floats_at(scratch.sums, CHUNK)
    for i in range(count):
        beta = _gate(arguments.beta, chunk, i)
        lower = floats_at(scratch.lower + i * STEP_BYTES, CHUNK)
        mixed = floats_at(scratch.mixed + i * STEP_BYTES, CHUNK)
        for j in range(i):
            decay = exp(sums[i] - sums[j])
            lower[j] *= beta * decay
            mixed[j] *= decay
        lower[i] = np.float32(0)
        for j in range(i + 1, CHUNK):
            lower[j] = np.float32(0)
            mixed[j] = np.float32(0)


@device_function
def _decay_keys(size: int, count: int, scratch: Scratch) -> None:
    """Multiply each key that is a column by what is left of it behind the chunk."""
    sums, factors = floats_at(scratch.sums, CHUNK), floats_at(scratch.factors, CHUNK)
    last = sums[count - 1]
    for i in range(count):
        factors[i] = exp(last - sums[i])
    for channel in range(size):
        row = floats_at(scratch.turned + channel * STEP_BYTES, count)
        for i in range(count):
            row[i] *= factors[i]


@device_function_with(fastmath={"contract"})
def _begin_written(
    micro: MicroKernel,
    arguments: DeltaArguments,
    chunk: Chunk,
    panel: Panel,
    scratch: Scratch,
) -> None:
    """Write beta (V - exp(G) K S) of a panel."""
    row_bytes, count = 4 * arguments.key_size, chunk.length
    sizes = (1, arguments.key_size * STEP_BYTES, 0)
    for i in range(0, count, micro.rows):
        rows = (scratch.keys + i * row_bytes, row_bytes, count - 1 - i)
        fill_tile(micro, panel.state, rows, sizes, scratch.written + i * STEP_BYTES, (0, 0))
    for i in range(count):
        token = _token(arguments, chunk, i)
        beta = _gate(arguments.beta, chunk, i)
        since = exp(read(FLOAT32, scratch.sums, i))
        written = floats_at(scratch.written + i * STEP_BYTES, PANEL)
        value = floats_at(token.value + 4 * panel.first, panel.width)
        for j in range(panel.width):
            written[j] = beta * (value[j] - since * written[j])
        for j in range(panel.width, PANEL):
            written[j] = np.float32(0)


@device_function_with(fastmath={"contract"})
def _solve(micro: MicroKernel, count: int, scratch: Scratch) -> None:
    """Solve (1 + lower) U = written in place."""
    for begin in range(0, count, micro.rows):
        end = smaller(count, begin + micro.rows)
        if begin > 0:
            rows = (scratch.lower + begin * STEP_BYTES, STEP_BYTES, end - 1 - begin)
            sizes = (1, begin * STEP_BYTES, 0)
            fill_tile(micro, scratch.written, rows, sizes, scratch.tile, (0, 0))
        for i in range(begin, end):
            row = floats_at(scratch.written + i * STEP_BYTES, PANEL)
            if begin > 0:
                known = floats_at(scratch.tile + (i - begin) * STEP_BYTES, PANEL)
                for j in range(PANEL):
                    row[j] -= known[j]
            for above in range(begin, i):
                factor = read(FLOAT32, scratch.lower + i * STEP_BYTES, above)
                other = floats_at(scratch.written + above * STEP_BYTES, PANEL)
                for j in range(PANEL):
                    row[j] -= factor * other[j]


@device_function_with(fastmath={"contract"})
def _write_out(
    micro: MicroKernel,
    arguments: DeltaArguments,
    chunk: Chunk,
    panel: Panel,
    scratch: Scratch,
) -> None:
    """Write exp(G) Q S + mixed U of a panel."""
    row_bytes, count = 4 * arguments.key_size, chunk.length
    sizes = (1, arguments.key_size * STEP_BYTES, 0)
    for begin in range(0, count, micro.rows):
        end = smaller(count, begin + micro.rows)
        rows = (scratch.queries + begin * row_bytes, row_bytes, end - 1 - begin)
        fill_tile(micro, panel.state, rows, sizes, scratch.tile, (0, 0))
        rows = (scratch.mixed + begin * STEP_BYTES, STEP_BYTES, end - 1 - begin)
        fill_tile(micro, scratch.written, rows, (1, end * STEP_BYTES, 0), scratch.more, (0, 0))
        for i in range(begin, end):
            since = exp(read(FLOAT32, scratch.sums, i))
            before = floats_at(scratch.tile + (i - begin) * STEP_BYTES, panel.width)
            within = floats_at(scratch.more + (i - begin) * STEP_BYTES, panel.width)
            out = floats_at(_token(arguments, chunk, i).out + 4 * panel.first, panel.width)
            for j in range(panel.width):
                out[j] = since * before[j] + within[j]


@device_function_with(fastmath={"contract"})
def _write_state(micro: MicroKernel, state: int, size: int, count: int, scratch: Scratch) -> None:
    """Write exp(G_last) S + turned U of a panel."""
    decay, sizes = exp(read(FLOAT32, scratch.sums, count - 1)), (1, count * STEP_BYTES, 0)
    for begin in range(0, size, micro.rows):
        rows = (scratch.turned + begin * STEP_BYTES, STEP_BYTES, size - 1 - begin)
        fill_tile(micro, scratch.written, rows, sizes, scratch.tile, (0, 0))
        for i in range(begin, smaller(size, begin + micro.rows)):
            row = floats_at(state + i * STEP_BYTES, PANEL)
            added = floats_at(scratch.tile + (i - begin) * STEP_BYTES, PANEL)
            for j in range(PANEL):
                row[j] = decay * row[j] + added[j]
