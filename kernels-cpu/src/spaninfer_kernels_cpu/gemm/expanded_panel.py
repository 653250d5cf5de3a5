"""A panel of codes expanded to bfloat16 for the tiles of AMX (`amx_panel`).

A tile multiplies so much faster than a group's sums can be scaled that codes are scaled first: the
numbers they stand for, rounded to bfloat16.

Activations are bfloat16 too, so a row differs from what it is among a few, whose activations are
codes. Both factors are rounded by 2^-8 of themselves at most; codes of 8 bits by as much of the
largest of their group.
"""

from __future__ import annotations

from typing import Any

from numba.core import types

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.memory import stack
from spaninfer_kernels_cpu.codegen.vectors import Builder, Value, intrinsic
from spaninfer_kernels_cpu.gemm.code_scales import expand_scales, group_scales
from spaninfer_kernels_cpu.gemm.code_unit import LOWER, UPPER, WHOLE, Unit, codes_of
from spaninfer_kernels_cpu.gemm.dot_product import DOTS
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.gemm.panel_records import record_parts
from spaninfer_kernels_cpu.gemm.panel_rows import PanelRows
from spaninfer_kernels_cpu.quantisation.codes import Codes
from spaninfer_kernels_cpu.quantisation.layout import BLOCK_BYTES, LANES, PANEL, STEP_BYTES

_DOT = DOTS["vnni512"]  # every CPU with tiles has it

# A float32 of these bits, and 15 bits below them a number of 8 bits, is 256 + the number.
_BASE, _BASE_BITS, _NUMBER_BITS = 256, 0x43800000, 0x7F8000
_TO_NUMBER_BITS = (15, 7, -1, -9)  # shifts of a word's four bytes


@device_function
def expand(micro: MicroKernel, job: PanelRows, first: int, stop: int, out: int) -> None:
    """Write units of a panel as steps of bfloat16, as a panel of such has them."""
    _, record_bytes, row_record = job.sizes
    of_record = row_record // micro.row_bytes
    room = stack(micro.scales_room)
    for half in range(PANEL // LANES // micro.blocks):
        block, at = half * micro.blocks, out + half * micro.blocks * BLOCK_BYTES
        for unit in range(first, stop):
            record, within = unit // of_record, unit % of_record
            record_at = job.panel + record * record_bytes
            codes, scales = record_parts(micro, record_at, record_bytes)
            if within == 0 or unit == first:
                expand_scales(micro, scales, block, room)
            group = within * micro.record_groups // of_record
            weights = codes + within * micro.weight_bytes + block * BLOCK_BYTES
            expand_unit(micro, weights, (scales, room, block, group), at)
            at += micro.unit_channels // 2 * STEP_BYTES


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
                        place = (2 * step + pair) * STEP_BYTES + block * BLOCK_BYTES
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
