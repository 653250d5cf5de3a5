"""The gated delta rule token by token, on a state where it lies: for decodes.

Both products with the state are summed in one pass, with S the state in front of the token:

    u = beta (v - exp(g) S^T k)
    o = exp(g) S^T q + (q.k) u
    S <- exp(g) S + k u^T

A second pass writes it, while a head's 64 KB are still in the second cache: so memory reads and
writes a state once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spaninfer_kernels_cpu.codegen.array_view import floats_at
from spaninfer_kernels_cpu.codegen.device_function import device_function, device_function_with
from spaninfer_kernels_cpu.codegen.elements import FLOAT32, read, write
from spaninfer_kernels_cpu.codegen.exponential import exp
from spaninfer_kernels_cpu.delta_rule.head_task import (
    DeltaArguments,
    DeltaKernels,
    Head,
    Scratch,
    dot,
    token_at,
    write_unit,
)
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.gemm.register_tile import (
    add_products,
    row_addresses,
    store_rows,
    zero_tile,
)
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, LANES
from spaninfer_kernels_cpu.runtime.call import row_at


@device_function
def take_token(
    kernels: DeltaKernels,
    arguments: DeltaArguments,
    head: Head,
    row: int,
    state: int,
    scratch: Scratch,
) -> None:
    """Write what the state at an address says of a token's query, and update it."""
    size = arguments.key_size
    token, units = token_at(arguments, head, row), scratch.queries
    write_unit(token.query, units, size, arguments.scale)
    write_unit(token.key, units + 4 * size, size, np.float32(1))
    _read_state(kernels, arguments, state, scratch)
    decay = exp(read(FLOAT32, row_at(arguments.g, row), head.value))
    rate = read(FLOAT32, row_at(arguments.beta, row), head.value)
    mixed = dot(units, units + 4 * size, size)
    written = scratch.state + 4 * arguments.value_size
    _begin_written(written, token.value, arguments.value_size, decay, rate)
    _write_out(token.out, scratch.state, arguments.value_size, decay, mixed)
    _write_state(state, arguments, scratch, decay)


@device_function
def _read_state(
    kernels: DeltaKernels, arguments: DeltaArguments, state: int, scratch: Scratch
) -> None:
    """Write the products of query and key with a state[D E], [2 E] where panels are otherwise."""
    size, width = arguments.key_size, arguments.value_size
    blocks, block = width // LANES, 0
    while block + kernels.wide.blocks <= blocks:
        _read_columns(kernels.wide, arguments, state, scratch, block)
        block += kernels.wide.blocks
    while block < blocks:
        _read_columns(kernels.narrow, arguments, state, scratch, block)
        block += 1
    for column in range(blocks * LANES, width):
        for unit in range(2):
            total = np.float32(0)
            for i in range(size):
                x = read(FLOAT32, scratch.queries, unit * size + i)
                total += x * read(FLOAT32, state, i * width + column)
            write(FLOAT32, scratch.state, unit * width + column, total)


@device_function
def _read_columns(
    micro: MicroKernel, arguments: DeltaArguments, state: int, scratch: Scratch, block: int
) -> None:
    size, row_bytes = arguments.key_size, 4 * arguments.value_size
    address = state + block * BLOCK_BYTES
    rows: Any = row_addresses(micro, scratch.queries, 4 * size, 1)
    sums: Any = zero_tile(micro)
    for i in range(size):
        sums = add_products(micro, sums, address + i * row_bytes, rows, 4 * i)
    store_rows(micro, sums, row_addresses(micro, scratch.state + block * BLOCK_BYTES, row_bytes, 1))


@device_function_with(fastmath={"contract"})
def _begin_written(known: int, value: int, width: int, decay: np.float32, rate: np.float32) -> None:
    """Replace what was known of a key by what is written for it."""
    written, wanted = floats_at(known, width), floats_at(value, width)
    for i in range(width):
        written[i] = rate * (wanted[i] - decay * written[i])


@device_function_with(fastmath={"contract"})
def _write_out(out: int, said: int, width: int, decay: np.float32, mixed: np.float32) -> None:
    """Write what the state behind the token says; `said` lies in front of what is written."""
    result, before = floats_at(out, width), floats_at(said, width)
    written = floats_at(said + 4 * width, width)
    for i in range(width):
        result[i] = decay * before[i] + mixed * written[i]


@device_function_with(fastmath={"contract"})
def _write_state(
    state: int, arguments: DeltaArguments, scratch: Scratch, decay: np.float32
) -> None:
    size, width = arguments.key_size, arguments.value_size
    added = floats_at(scratch.state + 4 * width, width)
    for i in range(size):
        row, factor = (
            floats_at(state + 4 * i * width, width),
            read(FLOAT32, scratch.queries, size + i),
        )
        for j in range(width):
            row[j] = decay * row[j] + factor * added[j]
