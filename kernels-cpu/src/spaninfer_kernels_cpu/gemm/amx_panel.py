"""Many rows by a panel by AMX tiles, a part of the channels at a time.

A part of a panel stays in the L1 cache while all rows go by, whose sums wait in the L2 cache
between two parts (Goto and van de Geijn 2008). Rows of 32 meet both halves of the outputs, so that
they come from the L2 cache once for two squares.

Codes are laid out first, as what tiles multiply: as the bfloat16 that they stand for
(`expanded_panel`), or as bytes. Bytes give int32, which are scaled after each group.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from spaninfer_kernels_cpu.codegen.amx import TILE_BYTES
from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import smaller
from spaninfer_kernels_cpu.codegen.memory import StackBytes
from spaninfer_kernels_cpu.codegen.prefetch import Lines, ask_for_share, share_of
from spaninfer_kernels_cpu.codegen.specialization import specialized
from spaninfer_kernels_cpu.gemm.amx_square import (
    Square,
    begin_square,
    end_square,
    multiply_step,
    single_steps,
)
from spaninfer_kernels_cpu.gemm.amx_tile import chunk_of
from spaninfer_kernels_cpu.gemm.code_scales import add_scaled_row, load_parameters
from spaninfer_kernels_cpu.gemm.expanded_panel import expand
from spaninfer_kernels_cpu.gemm.micro_kernel import SQUARE_ROWS, MicroKernel
from spaninfer_kernels_cpu.gemm.panel_rows import PanelRows
from spaninfer_kernels_cpu.quantisation.codes import UNIT
from spaninfer_kernels_cpu.quantisation.layout import (
    PANEL,
    PARAMETER_BYTES,
    ROW_PARAMETER_BYTES,
    STEP_BYTES,
)

PART_BYTES: Final = 640
"""Bytes of a row that a part takes at most: 40 KB of a panel, of 48 in the L1 cache."""

PART: Final = StackBytes(PART_BYTES // 4 * STEP_BYTES)

HALF_STEP: Final = STEP_BYTES // 2  # 32 outputs


class Parts(NamedTuple):
    """The parts of a panel: so many of each of some groups, of so many pieces.

    A piece is what one product takes, `chunk` bytes of a row, or a unit of codes that are expanded.
    Groups are those of bytes, and else all channels.
    """

    groups: int
    of_group: int
    pieces: int
    chunk: int


class Part(NamedTuple):
    """A part of a panel, laid out: its weights, where it begins in a row, and how many products, of
    how many bytes of a row.
    """

    weights: int
    offset: int
    steps: int
    chunk: int


@device_function
def multiply_part(
    micro: MicroKernel, job: PanelRows, part: Part, row: int, sums: tuple[int, int], lines: Lines
) -> None:
    """Write sums[0], or zeros where that is 0, plus the products of a part to sums[1].

    Of up to 32 rows from `row` on. `lines` are to be on their way to the L2 cache meanwhile.
    """
    count = smaller(SQUARE_ROWS, job.num_rows - row)
    steps = single_steps(micro, part.steps, count)
    at_once = share_of(lines, 2 * steps)
    for half in range(2):
        square = square_of(micro, job, part, row, half)
        begin_square(sums[0] + half * HALF_STEP if sums[0] != 0 else 0, count)
        for step in range(steps):
            multiply_step(micro, square, step, count)
            ask_for_share(lines, half * steps + step, at_once)
        end_square(micro, square, count, sums[1] + half * HALF_STEP)


@device_function
def square_of(micro: MicroKernel, job: PanelRows, part: Part, row: int, half: int) -> Square:
    """Return the square of rows from `row` on by half of the outputs."""
    x = job.x + row * job.stride + part.offset
    part_bytes = job.sizes[0] * job.sizes[2] // micro.parts
    weights = part.weights + half * HALF_STEP
    return Square(x, job.stride, part_bytes, weights, part.steps, part.chunk)


@device_function
def add_scaled(job: PanelRows, group: int, row: int, count: int, dots: int) -> None:
    """Add what dots[count 64] of a group stand for to the job's sums, which the first one begins.

    Of rows from `row` on; `dots` are int32 of products with bytes.
    """
    groups, group_bytes, row_bytes = job.sizes
    sums = job.sums + row * STEP_BYTES
    if group == 0:
        floats_at(sums, count * PANEL)[:] = np.float32(0)
    parameters = job.panel + (group + 1) * group_bytes - PARAMETER_BYTES
    of_row = job.x + row * job.stride + groups * row_bytes + group * ROW_PARAMETER_BYTES
    for half in range(0, STEP_BYTES, HALF_STEP):
        w = load_parameters(parameters + half // 2)
        for n in range(count):
            at = n * STEP_BYTES + half
            add_scaled_row(w, dots + at, of_row + n * job.stride, sums + at)


def _choose_parts(micro: MicroKernel) -> Any:
    if micro.expands:
        return _parts_of_units
    return _parts_of_groups if micro.is_quantised else _parts_of_numbers


@specialized(_choose_parts)
def parts_of(micro: MicroKernel, job: PanelRows) -> Parts:
    """Return the parts of a panel."""
    raise NotImplementedError("exists in Numba functions only")


def _parts_of_units(micro: MicroKernel, job: PanelRows) -> Parts:
    units = job.sizes[0] * (job.sizes[2] // micro.row_bytes)
    return Parts(1, _count(units, PART_BYTES // micro.row_bytes), units, TILE_BYTES)


def _parts_of_groups(micro: MicroKernel, job: PanelRows) -> Parts:  # noqa: ARG001
    groups, _, row_bytes = job.sizes
    chunk = chunk_of(row_bytes // 4)
    pieces = row_bytes // chunk
    return Parts(groups, _count(pieces, PART_BYTES // chunk), pieces, chunk)


def _parts_of_numbers(micro: MicroKernel, job: PanelRows) -> Parts:
    row_bytes = job.sizes[2] // micro.parts
    chunk = chunk_of(row_bytes // 4)
    pieces = row_bytes // chunk
    return Parts(1, _count(pieces, PART_BYTES // chunk), pieces, chunk)


@device_function
def _count(pieces: int, most: int) -> int:
    return (pieces + most - 1) // most


def _choose_lay(micro: MicroKernel) -> Any:
    if micro.expands:
        return _lay_expanded
    return _lay_narrow if micro.code_bits == 4 else _lay_in_place


@specialized(_choose_lay)
def lay(micro: MicroKernel, job: PanelRows, parts: Parts, number: int, room: int) -> Part:
    """Return part `number`, laid out in a room for PART or where it is in the panel."""
    raise NotImplementedError("exists in Numba functions only")


def _lay_expanded(micro: MicroKernel, job: PanelRows, parts: Parts, number: int, room: int) -> Part:
    first, stop = _pieces(parts, number)
    expand(micro, job, first, stop, room)
    steps = (stop - first) * micro.unit_channels // UNIT
    return Part(room, first * micro.row_bytes, steps, parts.chunk)


def _lay_in_place(
    micro: MicroKernel,  # noqa: ARG001
    job: PanelRows,
    parts: Parts,
    number: int,
    room: int,  # noqa: ARG001
) -> Part:
    first, stop = _pieces(parts, number)
    group = number // parts.of_group
    weights = job.panel + group * job.sizes[1] + first * parts.chunk // 4 * STEP_BYTES
    return Part(weights, group * job.sizes[2] + first * parts.chunk, stop - first, parts.chunk)


def _lay_narrow(
    micro: MicroKernel,  # noqa: ARG001
    job: PanelRows,
    parts: Parts,
    number: int,
    room: int,
) -> Part:
    first, stop = _pieces(parts, number)
    group = number // parts.of_group
    codes = job.panel + group * job.sizes[1] + first * parts.chunk // 8 * STEP_BYTES
    _widen(codes, (stop - first) * parts.chunk // 8, room)
    return Part(room, group * job.sizes[2] + first * parts.chunk, stop - first, parts.chunk)


@device_function
def _pieces(parts: Parts, number: int) -> tuple[int, int]:
    within = number % parts.of_group
    first = parts.pieces * within // parts.of_group
    stop = parts.pieces * (within + 1) // parts.of_group
    return first, stop


@device_function
def _widen(codes: int, steps: int, room: int) -> None:
    """Write the low halves of the bytes of a panel's step as a step, then the high ones."""
    for step in range(steps):
        source = numbers_at(codes + step * STEP_BYTES, STEP_BYTES, np.uint8)
        low = numbers_at(room + 2 * step * STEP_BYTES, STEP_BYTES, np.uint8)
        high = numbers_at(room + (2 * step + 1) * STEP_BYTES, STEP_BYTES, np.uint8)
        for i in range(STEP_BYTES):
            low[i] = source[i] & np.uint8(15)
            high[i] = source[i] >> np.uint8(4)
