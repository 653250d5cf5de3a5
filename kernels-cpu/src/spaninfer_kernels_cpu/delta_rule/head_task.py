"""A value head of a task: where its rows lie, what it computes with, and its scratch memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spaninfer_kernels_cpu.codegen.arguments import Arguments, Float32, Indirect
from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.device_function import (
    device_function,
    device_function_with,
    host_device_function,
)
from spaninfer_kernels_cpu.codegen.elements import FLOAT32, read, write
from spaninfer_kernels_cpu.delta_rule.state_plan import StateArray
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.quantisation.layout import PANEL, STEP_BYTES
from spaninfer_kernels_cpu.runtime.call import Matrix, row_at

CHUNK = PANEL  # tokens: the work within a chunk grows with its square, that between does not

_SPARE_ROWS = 16  # tiles of several rows write past the last
_ROWS = CHUNK + _SPARE_ROWS
_UNIT_EPS = np.float32(1e-6)  # spaninfer_op_reference.delta.UNIT_EPS
_REORDER = {"contract", "reassoc", "nsz", "arcp"}  # sums may go by lanes; NaN and inf still hold


@dataclass(frozen=True, slots=True)
class DeltaKernels(Constant):
    """Micro-kernels of float32: for the rows of a chunk, and to read a state where it lies, for a
    query and a key at a time, by several blocks of 16 columns and by one.
    """

    chunk: MicroKernel
    wide: MicroKernel
    narrow: MicroKernel


@dataclass(frozen=True, slots=True)
class DeltaArguments(Arguments):
    """`ratio` value heads share a head of query and key; sizes are those of a key and a value."""

    query: Matrix
    key: Matrix
    value: Matrix
    g: Matrix
    beta: Matrix
    out: Matrix
    states: StateArray
    pieces: Indirect
    begins: Indirect
    heads: int
    ratio: int
    key_size: int
    value_size: int
    scratch: int
    scale: Float32


class Scratch(NamedTuple):
    """Addresses of what a task keeps of a chunk and of a state, float32 [rows numbers].

    queries and keys[64 D] have unit length; turned[D 64] are keys, a column per token; rows (int64)
    the places of keys. lower and mixed[64 64] are the products of keys and of queries with keys,
    with their decays; written[64 64], tile and more[16 64] are of one panel of columns; state[D 64]
    is there for every panel. sums[64] are those of g, factors[64] what is left of each token.
    """

    queries: int
    keys: int
    turned: int
    rows: int
    lower: int
    mixed: int
    written: int
    tile: int
    more: int
    sums: int
    factors: int
    state: int


@host_device_function
def panel_bytes(key_size: int) -> int:
    """Return the bytes of a panel of a state in scratch memory."""
    return (key_size + _SPARE_ROWS) * STEP_BYTES


@host_device_function
def scratch_at(memory: int, key_size: int, value_size: int) -> tuple[Scratch, int]:
    """Return the addresses from `memory` on, and how many bytes that takes."""
    keys = memory + _ROWS * 4 * key_size
    turned = keys + _ROWS * 4 * key_size
    rows = turned + panel_bytes(key_size)
    lower = rows + CHUNK * 8
    mixed = lower + _ROWS * STEP_BYTES
    written = mixed + _ROWS * STEP_BYTES
    tile = written + _ROWS * STEP_BYTES
    more = tile + _SPARE_ROWS * STEP_BYTES
    sums = more + _SPARE_ROWS * STEP_BYTES
    factors = sums + STEP_BYTES
    state = factors + STEP_BYTES
    panels = (value_size + PANEL - 1) // PANEL
    end = state + panels * panel_bytes(key_size)
    scratch = Scratch(
        memory, keys, turned, rows, lower, mixed, written, tile, more, sums, factors, state
    )
    return scratch, end - memory


class Head(NamedTuple):
    """The number of a value head, and of the head of queries and keys that it reads."""

    value: int
    key: int


class Token(NamedTuple):
    """Addresses of a token's numbers of a head."""

    query: int
    key: int
    value: int
    out: int


@device_function
def token_at(arguments: DeltaArguments, head: Head, row: int) -> Token:
    """Return where a row's numbers of a head lie."""
    key, value = 4 * head.key * arguments.key_size, 4 * head.value * arguments.value_size
    return Token(
        row_at(arguments.query, row) + key,
        row_at(arguments.key, row) + key,
        row_at(arguments.value, row) + value,
        row_at(arguments.out, row) + value,
    )


@device_function_with(fastmath=_REORDER)
def write_unit(x: int, out: int, size: int, scale: np.float32) -> None:
    """Write x over its length, times a scale."""
    squares = np.float32(0)
    for i in range(size):
        squares += read(FLOAT32, x, i) * read(FLOAT32, x, i)
    factor = scale / np.sqrt(squares + _UNIT_EPS)
    for i in range(size):
        write(FLOAT32, out, i, read(FLOAT32, x, i) * factor)


@device_function_with(fastmath=_REORDER)
def dot(x: int, y: int, size: int) -> np.float32:
    """Return the product of two vectors."""
    total = np.float32(0)
    for i in range(size):
        total += read(FLOAT32, x, i) * read(FLOAT32, y, i)
    return total
