"""Rows of a task by a panel by AMX tiles, outputs included.

Vectors finish 32 rows, two at a time, while tiles multiply the next 32: so both have work.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from spaninfer_kernels_cpu.codegen.array_view import floats_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import smaller
from spaninfer_kernels_cpu.codegen.memory import StackBytes, stack
from spaninfer_kernels_cpu.codegen.prefetch import (
    Lines,
    ask_for_share,
    part_of,
    share_of,
)
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
from spaninfer_kernels_cpu.gemm.epilogue import activate_rows, ending_of, write_row
from spaninfer_kernels_cpu.gemm.gemm_arguments import Job
from spaninfer_kernels_cpu.gemm.gemm_tiles import GemmTiles
from spaninfer_kernels_cpu.gemm.micro_kernel import FINISHED_ROWS, SQUARE_ROWS
from spaninfer_kernels_cpu.gemm.panel_rows import PanelRows
from spaninfer_kernels_cpu.gemm.register_tile import load_tile, row_addresses
from spaninfer_kernels_cpu.gemm.unpacked_block import end_tile
from spaninfer_kernels_cpu.quantisation.layout import PANEL, STEP_BYTES
from spaninfer_kernels_cpu.runtime.call import row_at

_FINISHED: Final = SQUARE_ROWS // FINISHED_ROWS
_SQUARE_BYTES: Final = SQUARE_ROWS * STEP_BYTES
_ROOMS: Final = StackBytes(2 * _SQUARE_BYTES)  # sums of the rows that are multiplied, and finished


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
    in_groups = micro.is_quantised and not micro.expands
    stays = job.panel < job.arguments.half
    parts = parts_of(micro, rows)
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
                _multiply_last_part(tiles, job, rows, part, place, (first, lines, waiting))
                waiting = Waiting(row, count, moved)
            else:
                out = moved if in_groups and ends else kept
                multiply_part(micro, rows, part, row, (source, out), lines)
                if in_groups and ends:
                    add_scaled(rows, each // parts.of_group, row, count, moved)
    if not stays:
        _finish(tiles, job, rows, first, waiting)


@device_function
def _multiply_last_part(
    tiles: GemmTiles,
    job: Job,
    rows: PanelRows,
    part: Part,
    place: tuple[int, int, int],
    beside: tuple[int, Lines, Waiting],
) -> None:
    """Multiply rows by a last part as `multiply_part` does; meanwhile finish those that wait.

    `place`: the first of the rows, where their sums are and where they go. `beside`: what
    `multiply_by_amx` takes, and what waits: 32 rows or none.
    """
    micro = tiles.large
    (row, source, out), (first, lines, waiting) = place, beside
    count = smaller(SQUARE_ROWS, rows.num_rows - row)
    steps = single_steps(micro, part.steps, count)
    at_once, some = share_of(lines, 2 * steps), share_of((0, _FINISHED), 2 * steps)
    done = 0
    for half in range(2):
        square = square_of(micro, rows, part, row, half)
        begin_square(source + half * HALF_STEP if source != 0 else 0, count)
        for step in range(steps):
            multiply_step(micro, square, step, count)
            ask_for_share(lines, half * steps + step, at_once)
            stop = smaller(_FINISHED, done + some)
            for each in range(done, stop):
                at = each * FINISHED_ROWS
                if waiting.num_rows > 0:
                    _finish_some(tiles, job, rows, first, waiting, at)
            done = stop
        end_square(micro, square, count, out + half * HALF_STEP)
    if waiting.num_rows > 0:
        for each in range(done, _FINISHED):
            _finish_some(tiles, job, rows, first, waiting, each * FINISHED_ROWS)


@device_function
def _finish(tiles: GemmTiles, job: Job, rows: PanelRows, first: int, waiting: Waiting) -> None:
    """Finish all rows that wait."""
    whole = waiting.num_rows // FINISHED_ROWS * FINISHED_ROWS
    for at in range(0, whole, FINISHED_ROWS):
        _finish_some(tiles, job, rows, first, waiting, at)
    for at in range(whole, waiting.num_rows):
        sums = _scaled(tiles, rows, waiting, at, 1)
        _write_row(tiles.activation, job, first + waiting.row + at, waiting.row + at, sums)


@device_function
def _finish_some(
    tiles: GemmTiles, job: Job, rows: PanelRows, first: int, waiting: Waiting, at: int
) -> None:
    """Write what becomes of FINISHED_ROWS of the rows that wait, from row `at` of them on."""
    row = waiting.row + at
    ending, finishing = ending_of(job, first + row), tiles.large.finishing
    sums_at = _scaled(tiles, rows, waiting, at, FINISHED_ROWS)
    if ending.is_direct:
        sums: Any = load_tile(finishing, sums_at)
        outs: Any = row_addresses(finishing, ending.out, ending.stride, FINISHED_ROWS - 1)
        end_tile(finishing, sums, ending, (0, FINISHED_ROWS - 1, 0), outs)
        activate_rows(tiles.activation, job, ending, FINISHED_ROWS)
    else:
        for n in range(FINISHED_ROWS):
            sums_of = sums_at + n * STEP_BYTES
            _write_row(tiles.activation, job, first + row + n, row + n, sums_of)


@device_function
def _scaled(tiles: GemmTiles, rows: PanelRows, waiting: Waiting, at: int, count: int) -> int:
    """Return where the sums of rows that wait are as float32."""
    micro = tiles.large
    sums = waiting.sums + at * STEP_BYTES
    if micro.is_quantised and not micro.expands:
        row = waiting.row + at
        add_scaled(rows, rows.sizes[0] - 1, row, count, sums)
        return rows.sums + row * STEP_BYTES
    return sums


@device_function
def _write_row(activation: Activation, job: Job, row: int, number: int, sums_at: int) -> None:
    """Write what becomes of a row as `write_row` does; its gates are row `number` of job.gates."""
    half = job.arguments.half
    if half == 0:
        write_row(activation, job, row, sums_at)
    else:
        out = floats_at(row_at(job.arguments.out, row) + 4 * PANEL * (job.panel - half), PANEL)
        gates, sums = floats_at(job.gates + number * STEP_BYTES, PANEL), floats_at(sums_at, PANEL)
        for i in range(PANEL):
            out[i] = activated(activation, gates[i]) * sums[i]
