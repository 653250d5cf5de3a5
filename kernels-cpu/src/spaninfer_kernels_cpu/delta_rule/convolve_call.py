"""The causal convolution of each channel in front of linear attention, as a call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.arguments import Arguments, Indirect
from spaninfer_kernels_cpu.codegen.array_view import floats_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import read_index, smaller
from spaninfer_kernels_cpu.delta_rule.state_plan import (
    NO_SOURCE,
    Piece,
    StateArray,
    StatePlan,
    piece_at,
)
from spaninfer_kernels_cpu.elementwise.activations import SILU, activated
from spaninfer_kernels_cpu.errors import DTypeError, ShapeError
from spaninfer_kernels_cpu.runtime.call import Call, Matrix, row_at

_CHANNELS = 512  # of a task: all that it sums stays in the first cache


@dataclass(frozen=True, slots=True)
class _ConvolveArguments(Arguments):
    """`history`: rows of inputs that a state keeps; weight[history + 1, channels]."""

    x: Matrix
    out: Matrix
    weight: int
    history: int
    channels: int
    silu: bool
    states: StateArray
    pieces: Indirect
    begins: Indirect


def convolve_call(
    x: Matrix,
    weight: NDArray[np.float32],
    states: NDArray[np.float32],
    plan: StatePlan,
    *,
    out: Matrix,
    silu: bool = False,
) -> Call:
    """Write the causal convolution of x[T C] by weight[n C], and its SiLU if asked; update states.

    states[S n-1 C] hold the inputs in front of a piece, and then those behind it: see
    spaninfer_op_reference.convolve, whose weight is this one transposed. The caller keeps weight
    and states alive. Raises KernelError for arrays that do not fit together.
    """
    if weight.dtype != np.float32:
        raise DTypeError(f"weight holds {weight.dtype}; the kernel takes float32")
    if weight.ndim != 2 or not weight.size or not weight.flags.c_contiguous:
        raise ShapeError(f"weight: expected contiguous axes (n C), got shape {weight.shape}")
    taps, channels = weight.shape
    if taps < 2 or states.shape[1:] != (taps - 1, channels):
        raise ShapeError(
            f"weight {weight.shape} needs at least 2 taps, and states of shape "
            f"(S {taps - 1} {channels}), got {states.shape}"
        )
    arguments = _ConvolveArguments(
        x=x,
        out=out,
        weight=weight.ctypes.data,
        history=taps - 1,
        channels=channels,
        silu=silu,
        states=StateArray.of(states, "S n-1 C"),
        pieces=plan.pieces,
        begins=plan.begins,
    )
    return Call(_convolve, arguments, -(-channels // _CHANNELS), 1, plan.count)


def _convolve(arguments: _ConvolveArguments, tokens: int, task: int) -> None:  # noqa: ARG001
    parts = (arguments.channels + _CHANNELS - 1) // _CHANNELS
    chain, start = task // parts, task % parts * _CHANNELS
    width = smaller(_CHANNELS, arguments.channels - start)
    begins, pieces = arguments.begins, arguments.pieces
    for number in range(read_index(begins, chain), read_index(begins, chain + 1)):
        piece = piece_at(pieces, number)
        for row in range(piece.first, piece.last):
            _sum_taps(arguments, piece, row, start, width)
        _keep_inputs(arguments, piece, start, width)


@device_function
def _sum_taps(
    arguments: _ConvolveArguments, piece: Piece, row: int, start: int, width: int
) -> None:
    out = floats_at(row_at(arguments.out, row) + 4 * start, width)
    for i in range(width):
        out[i] = np.float32(0)
    for tap in range(arguments.history + 1):
        address = _input_at(arguments, piece, row - arguments.history + tap)
        if address != 0:
            inputs = floats_at(address + 4 * start, width)
            row_bytes = 4 * arguments.channels
            weight = floats_at(arguments.weight + tap * row_bytes + 4 * start, width)
            for i in range(width):
                out[i] += inputs[i] * weight[i]
    if arguments.silu:
        for i in range(width):
            out[i] = activated(SILU, out[i])


@device_function
def _keep_inputs(arguments: _ConvolveArguments, piece: Piece, start: int, width: int) -> None:
    """Write the last inputs to the target, the earliest first: it may be the source."""
    row_bytes, history = 4 * arguments.channels, arguments.history
    target = arguments.states.address + piece.target * arguments.states.span_bytes + 4 * start
    for kept in range(history):
        out = floats_at(target + kept * row_bytes, width)
        address = _input_at(arguments, piece, piece.last - history + kept)
        if address == 0:
            for i in range(width):
                out[i] = np.float32(0)
        else:
            inputs = floats_at(address + 4 * start, width)
            for i in range(width):
                out[i] = inputs[i]


@device_function
def _input_at(arguments: _ConvolveArguments, piece: Piece, row: int) -> int:
    """Return where the input of a row lies: in x or the state in front; 0 for one of zeros."""
    if row >= piece.first:
        return row_at(arguments.x, row)
    if piece.source == NO_SOURCE:
        return 0
    kept = row - piece.first + arguments.history
    source = arguments.states.address + piece.source * arguments.states.span_bytes
    return source + kept * 4 * arguments.channels
