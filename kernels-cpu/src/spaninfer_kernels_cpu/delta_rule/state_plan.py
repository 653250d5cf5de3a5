"""The places of recurrent states, and the pieces of a step that read and write them.

A span holds what a layer keeps of a sequence. A piece is rows [first, last) of a step, which begin
with the state of span `source` and leave theirs in `target`. A piece that begins with what the one
before it left belongs to the same sequence: one thread takes such a chain, piece by piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.attention.checks import demand, demand_below
from spaninfer_kernels_cpu.codegen.arguments import Arguments, Indirect
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import read_index
from spaninfer_kernels_cpu.errors import DTypeError, KernelError, ShapeError

Ints = NDArray[np.int32]

PIECE_NUMBERS = 4
NO_SOURCE = -1  # a sequence begins: with zeros


@dataclass(frozen=True, slots=True)
class StateArray(Arguments):
    """The address of span 0 and the bytes to the next one; what a span holds is contiguous."""

    address: int
    span_bytes: int

    @classmethod
    def of(cls, array: NDArray[np.float32], axes: str) -> StateArray:
        """Return where an array of these axes lies, spans first; the caller keeps it alive.

        Raises KernelError unless it is float32 in spans, each contiguous, that do not overlap.
        """
        if array.dtype != np.float32:
            raise DTypeError(f"states hold {array.dtype}; the kernel takes float32")
        size = 4 * int(np.prod(array.shape[1:]))
        if array.ndim != len(axes.split()) or not size:
            raise ShapeError(f"states: expected axes ({axes}), got shape {array.shape}")
        apart = len(array) < 2 or (array.strides[0] >= size and array.strides[0] % 4 == 0)
        if not (array.flags.aligned and apart and (not len(array) or array[0].flags.c_contiguous)):
            raise ShapeError(
                f"states: the numbers of a span must be contiguous and aligned, but the strides "
                f"are {array.strides} bytes for shape {array.shape}"
            )
        if not array.flags.writeable:
            raise KernelError("states are read-only; give an array that can be written")
        return cls(array.ctypes.data, array.strides[0])


@dataclass(frozen=True, slots=True)
class StatePlan:
    """The pieces of a step (`plan_states`): which of its counts is that of the chains.

    pieces[P 4], and begins[chains + 1], the number of the first piece of each.
    """

    count: int
    pieces: Indirect
    begins: Indirect


def plan_states(pieces: Ints) -> Ints:
    """Return the first piece of every chain of pieces[P 4], and P at the end."""
    sources, targets = pieces[1:, 2], pieces[:-1, 3]
    begins = 1 + np.flatnonzero(sources != targets)
    return np.concatenate([[0] * bool(len(pieces)), begins, [len(pieces)]]).astype(np.int32)


def check_pieces(pieces: Ints, begins: Ints, num_rows: int, num_spans: int) -> None:
    """Raise unless pieces are of these rows and spans, in order, and no two threads share a span.

    `begins` are those of `plan_states`.
    """
    first, last, source, target = pieces.T
    if (first > last).any() or (first[1:] < last[:-1]).any():
        raise ShapeError("pieces must be rows [first, last) in order, none in two pieces")
    if len(pieces) and (first[0] < 0 or last[-1] > num_rows):
        raise ShapeError(f"pieces are of rows {first[0]} to {last[-1]}; there are {num_rows}")
    demand_below("source + 1 of pieces", source + 1, num_spans + 1, f"spans, {num_spans} of states")
    demand_below("target of pieces", target, num_spans, "spans of states")
    chains = np.repeat(np.arange(len(begins) - 1), np.diff(begins))
    written: dict[int, int] = {}
    for span, chain in zip(target.tolist(), chains.tolist(), strict=True):
        if written.setdefault(span, chain) != chain:
            raise KernelError(f"two sequences of pieces write span {span}; each needs its own")
    for span, chain in zip(source.tolist(), chains.tolist(), strict=True):
        if written.get(span, chain) != chain:
            raise KernelError(f"pieces read span {span}, which another sequence of them writes")


def demand_pieces(pieces: Ints) -> None:
    """Raise unless pieces[P 4] are int32 that kernels can read."""
    demand("pieces", pieces, np.int32, "P 4", ordered=2)
    if pieces.shape[1] != PIECE_NUMBERS:
        raise ShapeError(f"pieces: expected (first, last, source, target), got {pieces.shape}")


# ---- inside kernels ------------------------------------------------------------------------------


class Piece(NamedTuple):
    """Rows [first, last), and the spans of the states in front of them and behind."""

    first: int
    last: int
    source: int
    target: int


@device_function
def piece_at(pieces: int, number: int) -> Piece:
    """Return a piece of those at an address."""
    address = pieces + number * PIECE_NUMBERS * 4
    return Piece(
        read_index(address, 0),
        read_index(address, 1),
        read_index(address, 2),
        read_index(address, 3),
    )
