"""Rows of a task by a panel by AMX tiles, outputs included.

Vectors finish 32 rows, two at a time in registers, while tiles multiply the next 32: so both have
work.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from spaninfer_kernels_cpu.codegen.array_view import floats_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import smaller
from spaninfer_kernels_cpu.codegen.inline_function import always_inline
from spaninfer_kernels_cpu.codegen.memory import StackBytes, stack
from spaninfer_kernels_cpu.codegen.prefetch import Lines, ask_for_share, part_of, share_of
from spaninfer_kernels_cpu.codegen.specialization import specialized
from spaninfer_kernels_cpu.elementwise.activations import Activation, activated
from spaninfer_kernels_cpu.gemm.amx_panel import (
    HALF_STEP,
    PART,
    Part,
    add_scaled,
    lay,
    multiply_part,
    parts_of,
    square_of,
)
from spaninfer_kernels_cpu.gemm.amx_square import (
    begin_square,
    end_square,
    multiply_step,
    single_steps,
)
from spaninfer_kernels_cpu.gemm.amx_tile import configure
from spaninfer_kernels_cpu.gemm.code_scales import add_scaled_tile
from spaninfer_kernels_cpu.gemm.epilogue import activate_rows, ending_of, write_row
from spaninfer_kernels_cpu.gemm.gemm_arguments import Job
from spaninfer_kernels_cpu.gemm.gemm_tiles import GemmTiles
from spaninfer_kernels_cpu.gemm.micro_kernel import FINISHED_ROWS, SQUARE_ROWS, MicroKernel
from spaninfer_kernels_cpu.gemm.panel_rows import PanelRows
from spaninfer_kernels_cpu.gemm.register_tile import (
    load_tile,
    row_addresses,
    store_tile,
    zero_tile,
)
from spaninfer_kernels_cpu.gemm.unpacked_block import Ending, end_tile
from spaninfer_kernels_cpu.quantisation.layout import (
    PANEL,
    PARAMETER_BYTES,
    ROW_PARAMETER_BYTES,
    STEP_BYTES,
)
from spaninfer_kernels_cpu.runtime.call import row_at

_FINISHED: Final = SQUARE_ROWS // FINISHED_ROWS
_SQUARE_BYTES: Final = SQUARE_ROWS * STEP_BYTES
_ROOMS: Final = StackBytes(2 * _SQUARE_BYTES)  # sums of the rows that are multiplied, and finished


class Task(NamedTuple):
    """Rows of a job from `first` on, and what becomes of the products of that one and the panel."""

    job: Job
    rows: PanelRows
    first: int
    ending: Ending


class Waiting(NamedTuple):
    """Rows from `row` on, counted from those of a task, whose sums wait to be finished."""

    row: int
    num_rows: int
    sums: int


@device_function
def multiply_by_amx(tiles: GemmTiles, job: Job, rows: PanelRows, first: int, coming: Lines) -> None:
    """Multiply rows by a panel part by part, and write their outputs; the sums of gates stay in
    rows.sums.

    `first`: number of the first row in the call. `coming` are to be on their way to the L2 cache.
    """
    micro, room, sums = tiles.large, stack(PART), stack(_ROOMS)
    task, parts = Task(job, rows, first, ending_of(job, first)), parts_of(micro, rows)
    in_groups = micro.is_quantised and not micro.expands
    stays = job.panel < job.arguments.half
    squares = (rows.num_rows + SQUARE_ROWS - 1) // SQUARE_ROWS
    number = parts.groups * parts.of_group
    configured, waiting = 0, Waiting(0, 0, 0)
    for each in range(number):
        part = lay(micro, rows, parts, each, room)
        within = each % parts.of_group
        begins, ends = within == 0, within == parts.of_group - 1
        is_last = each == number - 1 and not stays
        for square in range(squares):
            row = square * SQUARE_ROWS
            count = smaller(SQUARE_ROWS, rows.num_rows - row)
            if count != configured:
                configure(micro, count, parts.chunk)
                configured = count
            lines = part_of(coming, each * squares + square, number * squares)
            kept, moved = rows.sums + row * STEP_BYTES, sums + (square & 1) * _SQUARE_BYTES
            source = 0 if begins else kept
            if is_last:
                place = (row, source, moved)
                _multiply_last_part(tiles, task, part, place, lines, waiting)
                waiting = Waiting(row, count, moved)
            else:
                out = moved if in_groups and ends else kept
                multiply_part(micro, rows, part, row, (source, out), lines)
                if in_groups and ends:
                    add_scaled(rows, each // parts.of_group, row, count, moved)
    if not stays:
        _finish(tiles, task, waiting, 0, waiting.num_rows)


@device_function
def _multiply_last_part(
    tiles: GemmTiles,
    task: Task,
    part: Part,
    place: tuple[int, int, int],
    lines: Lines,
    waiting: Waiting,
) -> None:
    """Multiply rows by a last part as `multiply_part` does; meanwhile finish those that wait.

    `place`: the first of the rows, where their sums are and where they go.
    """
    micro, rows, (row, source, out) = tiles.large, task.rows, place
    count = smaller(SQUARE_ROWS, rows.num_rows - row)
    steps = single_steps(micro, part.steps, count)
    at_once = share_of(lines, 2 * steps)
    some, done = FINISHED_ROWS * share_of((0, _FINISHED), 2 * steps), 0
    for half in range(2):
        square = square_of(micro, rows, part, row, half)
        begin_square(source + half * HALF_STEP if source != 0 else 0, count)
        for step in range(steps):
            multiply_step(micro, square, step, count)
            ask_for_share(lines, half * steps + step, at_once)
            stop = smaller(waiting.num_rows, done + some)
            _finish(tiles, task, waiting, done, stop)
            done = stop
        end_square(micro, square, count, out + half * HALF_STEP)
    _finish(tiles, task, waiting, done, waiting.num_rows)


@device_function
@always_inline
def _finish(tiles: GemmTiles, task: Task, waiting: Waiting, begin: int, stop: int) -> None:
    """Write what becomes of rows `begin` to `stop` of those that wait.

    A call of it is some fifty numbers on the stack: 256 rows of 4,096 by 1,024 in int8 of groups of
    32 at 877 instead of 1,007 Gop/s (medians of five, one core of a Xeon of the fifth generation).
    """
    finishing, rows, ending = tiles.large.finishing, task.rows, task.ending
    for at in range(begin, stop, FINISHED_ROWS):
        row = waiting.row + at
        sums: Any = _sums_of(tiles.large, rows, row, waiting.sums + at * STEP_BYTES)
        if ending.is_direct and at + FINISHED_ROWS <= stop:
            out = ending.out + row * ending.stride
            outs: Any = row_addresses(finishing, out, ending.stride, FINISHED_ROWS - 1)
            end_tile(finishing, sums, ending, (row, FINISHED_ROWS - 1, 0), outs)
            activate_rows(tiles.activation, task.job, ending, row, row + FINISHED_ROWS)
        else:
            sums_at = rows.sums + row * STEP_BYTES
            store_tile(finishing, sums, sums_at)
            for n in range(smaller(FINISHED_ROWS, stop - at)):
                _write_row(tiles.activation, task, row + n, sums_at + n * STEP_BYTES)


@specialized(
    lambda micro: _load_scaled if micro.is_quantised and not micro.expands else _load_floats
)
def _sums_of(micro: MicroKernel, rows: PanelRows, row: int, sums_at: int) -> Any:
    """Return the sums of FINISHED_ROWS from `row` on, which tiles wrote, as float32."""
    raise NotImplementedError("exists in Numba functions only")


def _load_floats(micro: MicroKernel, rows: PanelRows, row: int, sums_at: int) -> Any:  # noqa: ARG001
    return load_tile(micro.finishing, sums_at)


def _load_scaled(micro: MicroKernel, rows: PanelRows, row: int, sums_at: int) -> Any:
    """Row by row in memory 512 rows of 1,152 by 384 took 480 us, in registers 344 (same core)."""
    finishing, (groups, group_bytes, row_bytes) = micro.finishing, rows.sizes
    if groups > 1:
        sums: Any = load_tile(finishing, rows.sums + row * STEP_BYTES)
    else:
        sums = zero_tile(finishing)
    parameters = rows.panel + groups * group_bytes - PARAMETER_BYTES
    of_row = rows.x + row * rows.stride + groups * (row_bytes + ROW_PARAMETER_BYTES)
    last = rows.num_rows - 1 - row
    each: Any = row_addresses(finishing, of_row - ROW_PARAMETER_BYTES, rows.stride, last)
    return add_scaled_tile(finishing, sums, parameters, sums_at, each)


@device_function
def _write_row(activation: Activation, task: Task, row: int, sums_at: int) -> None:
    """Write what becomes of a row of the task as `write_row` does, its gates by their factors."""
    job, half = task.job, task.job.arguments.half
    if half == 0:
        write_row(activation, job, task.first + row, sums_at)
    else:
        place = row_at(job.arguments.out, task.first + row) + 4 * PANEL * (job.panel - half)
        out, sums = floats_at(place, PANEL), floats_at(sums_at, PANEL)
        gates = floats_at(job.gates + row * STEP_BYTES, PANEL)
        for i in range(PANEL):
            out[i] = activated(activation, gates[i]) * sums[i]
