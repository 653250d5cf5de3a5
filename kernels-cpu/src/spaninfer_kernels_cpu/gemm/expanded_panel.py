"""Many rows by a panel of codes, expanded to bfloat16 for the tiles of AMX.

A tile multiplies so much faster than a group's sums can be scaled that codes are scaled first: the
numbers they stand for, rounded to bfloat16, of 32 outputs and some channels at a time. These stay
in the L1 cache while all rows go by, whose sums wait in memory between two parts of the channels
(Goto and van de Geijn 2008).

Activations are bfloat16 too, so a row differs from what it is among a few, whose activations are
codes. Both factors are rounded by 2^-8 of themselves at most; codes of 8 bits by as much of the
largest of their group.
"""

from __future__ import annotations

from typing import Any

from numba.core import types

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import smaller
from spaninfer_kernels_cpu.codegen.memory import StackBytes, stack
from spaninfer_kernels_cpu.codegen.prefetch import Lines, ask_for_share, share_of
from spaninfer_kernels_cpu.codegen.vectors import Builder, Value, intrinsic
from spaninfer_kernels_cpu.gemm.amx_tile import (
    HALF_STEP,
    configure,
    load_rows,
    load_sums,
    load_weights,
    multiply,
    store_sums,
    zero_sums,
)
from spaninfer_kernels_cpu.gemm.code_scales import expand_scales, group_scales
from spaninfer_kernels_cpu.gemm.code_unit import LOWER, UPPER, WHOLE, Unit, codes_of
from spaninfer_kernels_cpu.gemm.dot_product import DOTS
from spaninfer_kernels_cpu.gemm.micro_kernel import SQUARE_ROWS, MicroKernel
from spaninfer_kernels_cpu.gemm.panel_records import record_parts
from spaninfer_kernels_cpu.gemm.panel_rows import PanelRows
from spaninfer_kernels_cpu.quantisation.codes import UNIT, Codes
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, STEP_BYTES

_UNITS = 8  # of a part of the channels: 16 KB of two blocks, as many of 32 rows: of 48 in the L1
_UNIT_BYTES = UNIT // 2 * HALF_STEP
_EXPANDED = StackBytes(_UNITS * _UNIT_BYTES)
_DOT = DOTS["vnni512"]  # every CPU with tiles has it

# A float32 of these bits, and 15 bits below them a number of 8 bits, is 256 + the number.
_BASE, _BASE_BITS, _NUMBER_BITS = 256, 0x43800000, 0x7F8000
_TO_NUMBER_BITS = (15, 7, -1, -9)  # shifts of a word's four bytes


@device_function
def multiply_panel(micro: MicroKernel, job: PanelRows, coming: Lines) -> None:
    """Write the products of all rows and a panel to the job's sums.

    `coming` are to be on their way to the L2 cache meanwhile.
    """
    records, _, row_record = job.sizes
    units = records * (row_record // micro.row_bytes)
    each = _UNITS * UNIT // micro.unit_channels
    parts = (units + each - 1) // each
    tiles = (job.num_rows + SQUARE_ROWS - 1) // SQUARE_ROWS
    at_once, turn = share_of(coming, 2 * parts * tiles), 0
    room = stack(_EXPANDED)
    for part in range(parts):
        first = part * each
        last = smaller(units, first + each)
        for half in range(2):
            _expand(micro, job, half, first, last, room)
            steps = (last - first) * micro.unit_channels // UNIT
            configured = 0
            for row in range(0, job.num_rows, SQUARE_ROWS):
                ask_for_share(coming, turn, at_once)
                turn += 1
                count = smaller(SQUARE_ROWS, job.num_rows - row)
                if count != configured:
                    configure(micro, count, UNIT // 2)
                    configured = count
                out = job.sums + row * STEP_BYTES + half * HALF_STEP
                if part == 0:
                    zero_sums(count)
                else:
                    load_sums(out, STEP_BYTES, count)
                x = job.x + row * job.stride + first * micro.row_bytes
                for step in range(steps):
                    load_weights(room + step * _UNIT_BYTES, HALF_STEP)
                    load_rows(x + step * 2 * UNIT, job.stride, count)
                    multiply(micro, count)
                store_sums(out, STEP_BYTES, count)


@device_function
def _expand(
    micro: MicroKernel, job: PanelRows, half: int, first: int, last: int, room: int
) -> None:
    """Write units of two blocks of a panel as steps of bfloat16."""
    _, record_bytes, row_record = job.sizes
    of_record = row_record // micro.row_bytes
    scales_room, block = stack(micro.scales_room), half * micro.blocks
    for unit in range(first, last):
        record, within = unit // of_record, unit % of_record
        record_at = job.panel + record * record_bytes
        codes, scales = record_parts(micro, record_at, record_bytes)
        if within == 0 or unit == first:
            expand_scales(micro, scales, block, scales_room)
        group = within * micro.record_groups // of_record
        at = codes + within * micro.weight_bytes + block * BLOCK_BYTES
        expand_unit(micro, at, (scales, scales_room, block, group), room)
        room += micro.unit_channels // 2 * HALF_STEP


@intrinsic
def expand_unit(_context: Any, kind: Any, _weights: Any, scales: Any, _out: Any) -> Any:
    """Write a unit of two blocks as steps of bfloat16; `scales` as in `code_scales.add_scaled`."""
    micro: MicroKernel = kind.value
    codes = codes_of(micro)

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, weights, found, out = arguments
        unit = Unit(b, micro, weights)
        for half, part in enumerate((LOWER, UPPER) if codes.halves else (WHOLE,)):
            lines = [_line(b, codes, *each) for each in group_scales(b, micro, found, half)]
            for step in part.steps(codes):
                for block, numbers in enumerate(unit.numbers(_DOT, step)):
                    for pair, vector in enumerate(_as_bfloat16(b, numbers, *lines[block])):
                        place = (2 * step + pair) * HALF_STEP + block * BLOCK_BYTES
                        v.store(b, vector, v.at(b, out, place))
        return context.get_dummy_value()

    return types.void(kind, types.int64, scales, types.int64), emit


def _line(b: Builder, codes: Codes, scale: Value, shift: Value | None) -> tuple[Value, Value]:
    """Return the factor and the term by which _BASE + a number becomes what that stands for."""
    base = v.constant(v.F32X16, -float(_BASE + codes.offset))
    if shift is None:
        return scale, b.fmul(scale, base)
    if codes.shift == "zero":
        return scale, b.fmul(scale, b.fsub(base, shift))
    return scale, v.fma(b, scale, base, shift)


def _as_bfloat16(b: Builder, numbers: Value, scale: Value, term: Value) -> tuple[Value, Value]:
    """Return what four bytes of 16 outputs stand for as two steps: outputs by pairs of channels."""
    words, found = b.bitcast(numbers, v.I32X16), []
    for shift in _TO_NUMBER_BITS:
        by = v.constant(v.I32X16, abs(shift))
        bits = b.shl(words, by) if shift > 0 else b.lshr(words, by)
        bits = b.or_(b.and_(bits, v.constant(v.I32X16, _NUMBER_BITS)), _BASE_BITS_LANES)
        value = v.fma(b, b.bitcast(bits, v.F32X16), scale, term)
        found.append(b.add(b.bitcast(value, v.I32X16), v.constant(v.I32X16, 1 << 15)))
    first, second, third, fourth = found
    return _pair(b, first, second), _pair(b, third, fourth)


_BASE_BITS_LANES = v.constant(v.I32X16, _BASE_BITS)


def _pair(b: Builder, low: Value, high: Value) -> Value:
    """Return the upper halves of two words, that of `low` below."""
    upper = b.and_(high, v.constant(v.I32X16, 0xFFFF0000))
    return b.or_(b.lshr(low, v.constant(v.I32X16, 16)), upper)
