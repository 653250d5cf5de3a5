"""The gated delta rule as a call: a task is a value head of a sequence."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.array_view import floats_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import read_index, smaller
from spaninfer_kernels_cpu.codegen.isa_level import active_level
from spaninfer_kernels_cpu.codegen.kernel import Kernel, variants
from spaninfer_kernels_cpu.delta_rule.chunk import Chunk, load_state, store_state, take_chunk
from spaninfer_kernels_cpu.delta_rule.head_task import (
    CHUNK,
    DeltaArguments,
    DeltaKernels,
    Head,
    Scratch,
    scratch_at,
)
from spaninfer_kernels_cpu.delta_rule.recurrence import take_token
from spaninfer_kernels_cpu.delta_rule.state_plan import (
    NO_SOURCE,
    Piece,
    StateArray,
    StatePlan,
    piece_at,
)
from spaninfer_kernels_cpu.errors import ShapeError, demand_size
from spaninfer_kernels_cpu.gemm.micro_kernel_choice import micro_kernels
from spaninfer_kernels_cpu.quantisation.layout import Format
from spaninfer_kernels_cpu.runtime.call import MAX_SIZE, Call, Matrix
from spaninfer_kernels_cpu.runtime.scratch_pool import acquire, give_back, scratch_pool

FEW = 9
"""Pieces of fewer tokens go token by token.

A layer of 32 heads of 128 x 128 on a core of a Xeon with AVX-512: 8 tokens take 1.2 ms token by
token and 1.3 in a chunk, 16 take 2.2 and 1.8 (2026-11-28).
"""


@dataclass(frozen=True, slots=True)
class DeltaRows:
    """Addresses of query[T K D], key[T K D], value[T H E], g[T H] and beta[T H] of a step."""

    query: Matrix
    key: Matrix
    value: Matrix
    g: Matrix
    beta: Matrix


def delta_rule_call(
    rows: DeltaRows,
    key_heads: int,
    states: NDArray[np.float32],
    plan: StatePlan,
    *,
    out: Matrix,
) -> Call:
    """Write the gated delta rule of a step into out[T H E], and update states[S H D E].

    See spaninfer_op_reference.delta_rule. The caller keeps the states alive. Raises KernelError
    for other arrays, and where `key_heads` do not divide the heads of states.
    """
    array = StateArray.of(states, "S H D E")
    heads, key_size, value_size = states.shape[1:]
    demand_size("key_heads", key_heads, 1, heads)
    for name, size in (("D", key_size), ("E", value_size)):
        demand_size(f"{name} of states", size, 1, MAX_SIZE >> 20)
    if heads % key_heads:
        raise ShapeError(f"states have {heads} heads, not a multiple of {key_heads} of keys")
    arguments = DeltaArguments(
        query=rows.query,
        key=rows.key,
        value=rows.value,
        g=rows.g,
        beta=rows.beta,
        out=out,
        states=array,
        pieces=plan.pieces,
        begins=plan.begins,
        heads=heads,
        ratio=heads // key_heads,
        key_size=key_size,
        value_size=value_size,
        scratch=scratch_pool(scratch_at(0, key_size, value_size)[1]),
        scale=key_size**-0.5,
    )
    return Call(delta_rule_kernel(), arguments, heads, 1, plan.count)


def delta_rule_kernel() -> Kernel:
    """Return the kernel of this process's ISA level."""
    level = active_level()
    one, many = micro_kernels(Format("float32"), rounded=False, level=level)
    # Two rows of sums for a query and a key: whole rows of 128 columns fit into 32 registers.
    wide = replace(one, rows=2, blocks=8 if level.blocks > 1 else 2)
    return _kernel(DeltaKernels(many, wide, replace(wide, blocks=1)))


@variants
def _kernel(kernels: DeltaKernels) -> Kernel:
    def delta_rule(arguments: DeltaArguments, tokens: int, task: int) -> None:  # noqa: ARG001
        heads = arguments.heads
        chain, number = task // heads, task % heads
        head = Head(number, number // arguments.ratio)
        memory = acquire(arguments.scratch, task)
        scratch, _ = scratch_at(memory, arguments.key_size, arguments.value_size)
        begins, pieces = arguments.begins, arguments.pieces
        for place in range(read_index(begins, chain), read_index(begins, chain + 1)):
            piece = piece_at(pieces, place)
            state = _begin_state(arguments, head, piece)
            if piece.last - piece.first < FEW:
                for row in range(piece.first, piece.last):
                    take_token(kernels, arguments, head, row, state, scratch)
            else:
                _take_chunks(kernels, arguments, head, piece, state, scratch)
        give_back(memory)

    return delta_rule


@device_function
def _begin_state(arguments: DeltaArguments, head: Head, piece: Piece) -> int:
    """Return the address of a head's state in the target, which is that of the source now."""
    states, numbers = arguments.states, arguments.key_size * arguments.value_size
    offset = 4 * head.value * numbers
    address: int = states.address + piece.target * states.span_bytes + offset
    state = floats_at(address, numbers)
    if piece.source == NO_SOURCE:
        for i in range(numbers):
            state[i] = np.float32(0)
    elif piece.source != piece.target:
        source = floats_at(states.address + piece.source * states.span_bytes + offset, numbers)
        for i in range(numbers):
            state[i] = source[i]
    return address


@device_function
def _take_chunks(
    kernels: DeltaKernels,
    arguments: DeltaArguments,
    head: Head,
    piece: Piece,
    state: int,
    scratch: Scratch,
) -> None:
    size, width = arguments.key_size, arguments.value_size
    load_state(state, size, width, scratch)
    for first in range(piece.first, piece.last, CHUNK):
        count = smaller(CHUNK, piece.last - first)
        take_chunk(kernels.chunk, arguments, Chunk(head, first, count), scratch)
    store_state(state, size, width, scratch)
