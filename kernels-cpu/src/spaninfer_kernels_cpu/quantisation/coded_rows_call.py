"""Rows of packed codes as a call: an embedding that is read where the head's GEMM reads it.

A row's codes lie four bytes to a step among those of 63 other outputs, and its scales likewise. A
step reads few rows, so the kernel is scalar code, and one for all formats: what differs between
them are numbers and tables that it reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.arguments import Arguments, Float32, Indirect
from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    larger,
    read,
    smaller,
)
from spaninfer_kernels_cpu.errors import FormatError, demand_size
from spaninfer_kernels_cpu.quantisation.codes import NUMBER_BITS, OUTER_BITS, UNIT, Codes
from spaninfer_kernels_cpu.quantisation.layout import PANEL, STEP_BYTES
from spaninfer_kernels_cpu.quantisation.packed import Packed
from spaninfer_kernels_cpu.runtime.call import (
    NUMBERS_PER_TASK,
    Call,
    Matrix,
    row_at,
    tokens_per_task,
)

_BYTES: Final = 256  # values of one
_WORD_BITS: Final = 32
_KINDS: Final = ("bfloat16", "float16", "float32", "e8m0")
_SHIFTS: Final = ("none", "bias", "zero")
_POWERS: Final = np.ldexp(1.0, np.arange(_BYTES) - 127)  # that exponents in e8m0 stand for


@dataclass(frozen=True, slots=True)
class _Panels(Arguments):
    """The places of codes and of what is beside them, in bytes, and the channels of a scale."""

    address: int
    panel_bytes: int
    record_bytes: int
    codes: int
    beside: int
    group: int
    record_groups: int


@dataclass(frozen=True, slots=True)
class _Numbers(Arguments):
    """Bits of both planes of a code (of the second perhaps none), and a table of what it means."""

    first: int
    second: int
    meanings: int


@dataclass(frozen=True, slots=True)
class _Scales(Arguments):
    """Flat scales: which of _KINDS, their bits, which of _SHIFTS is beside them, in that many bits.

    Or inner ones: bits of each (0 of flat ones), the number that stands for 0, and the bits of an
    output's whole string.
    """

    kind: int
    bits: int
    shift: int
    shift_bits: int
    inner_bits: int
    inner_offset: int
    string_bits: int
    powers: int


@dataclass(frozen=True, slots=True)
class _Arguments(Arguments):
    panels: _Panels
    numbers: _Numbers
    scales: _Scales
    ids: Indirect
    offset: int
    out: Matrix
    channels: int
    scale: Float32


def embed_codes_call(
    table: Packed, *, ids: Indirect, out: Matrix, offset: int = 0, scale: float = 1.0
) -> Call:
    """Write rows ids[T] + offset (int32) of a packed table[V C] of codes, times scale.

    They are the numbers of `unpack`, to the bit. Ids are trusted to name rows. Raises KernelError
    for a table without codes, of pairs of them or of 16 bits, and for an offset beyond it.
    """
    layout, codes = table.layout, table.layout.format.codes
    if codes is None or codes.is_paired or codes.is_wide:
        raise FormatError(
            f"table is packed as {layout.format.kind}; rows come from codes of one number each, "
            "of at most 8 bits"
        )
    demand_size("offset", offset, 0, layout.outputs - 1)
    codes_at, beside = layout.record_parts
    arguments = _Arguments(
        panels=_Panels(
            address=table.panels.ctypes.data,
            panel_bytes=layout.panel_bytes,
            record_bytes=layout.record_bytes,
            codes=codes_at.start or 0,
            beside=beside.start or 0,
            group=layout.group_channels,
            record_groups=codes.record_groups,
        ),
        numbers=_Numbers(codes.planes[0], sum(codes.planes[1:]), _meanings(codes).ctypes.data),
        scales=_scales(codes),
        ids=ids,
        offset=offset,
        out=out,
        channels=layout.channels,
        scale=scale,
    )
    return Call(_embed_codes, arguments, 1, tokens_per_task(layout.channels))


@cache
def _meanings(codes: Codes) -> NDArray[np.float64]:
    """Return what each code stands for before it is scaled; kept for good."""
    numbers = np.arange(_BYTES) if codes.table is None else np.array(codes.table)
    return numbers.astype(np.float64) - (0 if codes.shift == "zero" else codes.offset)


def _scales(codes: Codes) -> _Scales:
    inner = codes.inner
    return _Scales(
        kind=_KINDS.index(codes.scale),
        bits=NUMBER_BITS[codes.scale],
        shift=_SHIFTS.index(codes.shift),
        shift_bits=codes.shift_bits,
        inner_bits=0 if inner is None else inner.bits,
        inner_offset=0 if inner is None else inner.offset,
        string_bits=codes.parameter_bits,
        powers=_POWERS.ctypes.data,
    )


def _embed_codes(arguments: _Arguments, tokens: int, task: int) -> None:
    panels, channels = arguments.panels, arguments.channels
    ids = numbers_at(arguments.ids, tokens, np.int32)
    some = larger(1, NUMBERS_PER_TASK // channels)
    for row in range(task * some, smaller(tokens, (task + 1) * some)):
        which = ids[row] + arguments.offset
        panel, lane = panels.address + which // PANEL * panels.panel_bytes, which % PANEL
        out = floats_at(row_at(arguments.out, row), channels)
        for group in range((channels + panels.group - 1) // panels.group):
            record = panel + group // panels.record_groups * panels.record_bytes
            within = group % panels.record_groups
            beside = record + panels.beside
            if arguments.scales.inner_bits:
                scale, zero, bias = _inner_scale(arguments.scales, panels, beside, within, lane)
            else:
                scale, zero, bias = _flat_scale(arguments.scales, beside, within, lane)
            first = group * panels.group
            for i in range(smaller(panels.group, channels - first)):
                place = within * panels.group + i
                number = _number(arguments.numbers, record + panels.codes, place, lane)
                out[first + i] = np.float32((number - zero) * scale + bias) * arguments.scale


@device_function
def _number(numbers: _Numbers, codes: int, place: int, lane: int) -> float:
    """Return what the code of a channel of a record stands for, but for its scale."""
    first, second = numbers.first, numbers.second
    unit = numbers_at(
        codes + place // UNIT * (first + second) * STEP_BYTES,
        (first + second) * STEP_BYTES,
        np.uint8,
    )
    step, at = place % UNIT // 4, 4 * lane + place % 4
    bit = step * first
    code = np.int64(unit[bit // 8 * STEP_BYTES + at]) >> bit % 8 & (1 << first) - 1
    if second:
        bit = step * second
        above = np.int64(unit[(first + bit // 8) * STEP_BYTES + at]) >> bit % 8
        code |= (above & (1 << second) - 1) << first
    meaning: float = numbers_at(numbers.meanings, _BYTES, np.float64)[code]
    return meaning


@device_function
def _flat_scale(scales: _Scales, beside: int, group: int, lane: int) -> Any:
    """Return scale, zero point and bias of a group of a record."""
    at = beside + group * (scales.bits + scales.shift_bits) // 8 * PANEL
    scale, zero, bias = _float(scales, at, lane), 0.0, 0.0
    at += scales.bits // 8 * PANEL
    if scales.shift == 1:
        bias = _float(scales, at, lane)
    if scales.shift == 2:
        zero = np.float64(numbers_at(at, PANEL, np.uint8)[lane])
    return scale, zero, bias


@device_function
def _float(scales: _Scales, address: int, lane: int) -> float:
    """Return a number of the kind that scales have, in float64."""
    if scales.kind == 0:
        return np.float64(read(BFLOAT16, address, lane))
    if scales.kind == 1:
        return np.float64(read(FLOAT16, address, lane))
    if scales.kind == 2:
        return np.float64(read(FLOAT32, address, lane))
    exponent = numbers_at(address, PANEL, np.uint8)[lane]
    power: float = numbers_at(scales.powers, _BYTES, np.float64)[exponent]
    return power


@device_function
def _inner_scale(scales: _Scales, panels: _Panels, beside: int, group: int, lane: int) -> Any:
    """Return scale, zero point (0) and bias of a group of a record."""
    bits, groups = scales.inner_bits, panels.record_groups
    kinds = 2 if scales.shift == 1 else 1
    outers = kinds * groups * bits
    whole = _field(scales, beside, lane, group * bits, bits) - scales.inner_offset
    scale = whole * _outer(scales, beside, lane, outers)
    bias = 0.0
    if kinds == 2:
        minimum = _field(scales, beside, lane, (groups + group) * bits, bits)
        bias = -minimum * _outer(scales, beside, lane, outers + OUTER_BITS)
    return scale, 0.0, bias


@device_function
def _field(scales: _Scales, beside: int, lane: int, place: int, width: int) -> int:
    """Return that many bits of an output's string from a place on."""
    word, shift = place // _WORD_BITS, place % _WORD_BITS
    bits = _word(scales, beside, lane, word) >> shift
    if shift + width > _WORD_BITS:
        bits |= _word(scales, beside, lane, word + 1) << _WORD_BITS - shift
    field: int = bits & (1 << width) - 1
    return field


@device_function
def _word(scales: _Scales, beside: int, lane: int, number: int) -> int:
    """Return a word of an output's string, the last perhaps a half."""
    at = beside + number * STEP_BYTES
    word: int = numbers_at(at, PANEL, np.uint32)[lane]
    if (number + 1) * _WORD_BITS > scales.string_bits:
        word = numbers_at(at, PANEL, np.uint16)[lane]
    return word


@device_function
def _outer(scales: _Scales, beside: int, lane: int, place: int) -> float:
    """Return the float16 at a place of an output's string, which is a whole half of a word."""
    word, half = place // _WORD_BITS, place % _WORD_BITS // OUTER_BITS
    at = beside + word * STEP_BYTES
    if (word + 1) * _WORD_BITS > scales.string_bits:
        return np.float64(read(FLOAT16, at, lane))
    return np.float64(read(FLOAT16, at, 2 * lane + half))
