"""Weights rounded to the levels of a table, panel by panel, for Numba to compile."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.compiled import entry
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.memory import StackBytes, stack
from spaninfer_kernels_cpu.codegen.rounding import nearest_bf16
from spaninfer_kernels_cpu.quantisation.codes import UNIT, Codes
from spaninfer_kernels_cpu.quantisation.layout import PANEL, STEP_BYTES
from spaninfer_kernels_cpu.quantisation.pack_kernel import Bytes, Floats, upper_half, write_unit

STRETCHES, SHORTEST = 6, 16
"""Of scales that are tried for each end of the table: 16 twentieths, 17 to 21."""

MOST_HALVES = 255  # of a level, of which the least is -127
HALVES = 2 * MOST_HALVES + 1

_BITS = 4
_SCALES = 2 * STRETCHES
_UNIT_ROOM = StackBytes(UNIT)
_SCALES_ROOM = StackBytes(3 * 4 * _SCALES)


@cache
def nearest_codes(codes: Codes) -> NDArray[np.uint8]:
    """Return the codes of the levels nearest to -127.5, -127 to 127.5; kept for good.

    Numbers between them have that of the next one: what is halfway between levels is a whole number
    of halves, and has the lower.
    """
    assert codes.table is not None
    assert len(codes.table) == 1 << _BITS
    levels = np.array(codes.table) - codes.offset
    halves = np.arange(-MOST_HALVES, MOST_HALVES + 1)
    return np.searchsorted(levels[1:] + levels[:-1], halves).astype(np.uint8)


@cache
def nearest_levels(codes: Codes) -> NDArray[np.float32]:
    """Return the levels of `nearest_codes`; kept for good."""
    assert codes.table is not None
    return (np.array(codes.table) - codes.offset).astype(np.float32)[nearest_codes(codes)]


@entry
def round_panel(
    weight: int, channels: int, group: int, nearest: int, nearest_level: int, panel: int
) -> None:
    """Write the codes and scales of weight[64, channels], float32, into a panel.

    All are given by their addresses, those of `nearest_codes` and `nearest_levels` too. Scales are
    bfloat16.
    """
    table, levels = numbers_at(nearest, HALVES, np.uint8), floats_at(nearest_level, HALVES)
    code_bytes = (group + UNIT - 1) // UNIT * _BITS * STEP_BYTES
    record_bytes = code_bytes + 2 * PANEL
    for number in range((channels + group - 1) // group):
        codes = panel + number * record_bytes
        scales = numbers_at(codes + code_bytes, PANEL, np.uint16)
        count = min(channels - number * group, group)
        for output in range(PANEL):
            numbers = floats_at(weight + 4 * (output * channels + number * group), count)
            scale = _best(numbers, levels)
            scales[output] = upper_half(scale)
            _write_codes(numbers, _divisor(scale), table, codes + 4 * output)


@device_function
def _write_codes(numbers: Floats, divisor: np.float32, table: Bytes, words: int) -> None:
    """Write the codes of a group; those of channels that fill up its last unit are zero."""
    place = stack(_UNIT_ROOM)
    whole = numbers_at(place, UNIT, np.uint8)
    for start in range(0, len(numbers), UNIT):
        count = min(len(numbers) - start, UNIT)
        for i in range(count):
            whole[i] = table[_halves(numbers[start + i] / divisor)]
        for i in range(count, UNIT):
            whole[i] = np.uint8(0)
        write_unit(place, _BITS, words + start // UNIT * _BITS * STEP_BYTES)


@device_function
def _best(numbers: Floats, levels: Floats) -> np.float32:
    """Return the scale whose errors' squares have the least sum, the first of equals."""
    largest = np.float32(0)
    for i in range(len(numbers)):
        largest = numbers[i] if abs(numbers[i]) > abs(largest) else largest
    room = stack(_SCALES_ROOM)
    scales, divisors = floats_at(room, _SCALES), floats_at(room + 4 * _SCALES, _SCALES)
    squares = floats_at(room + 8 * _SCALES, _SCALES)
    for lane in range(_SCALES):
        reached = np.float32(largest / levels[0 if lane < STRETCHES else HALVES - 1])
        stretch = np.float32((SHORTEST + lane % STRETCHES) / 20)
        scales[lane] = nearest_bf16(np.float32(reached * stretch))
        divisors[lane], squares[lane] = _divisor(scales[lane]), np.float32(0)
    for place in range(len(numbers)):
        number = numbers[place]
        for lane in range(_SCALES):  # side by side: no sum waits for another
            level = levels[_halves(number / divisors[lane])]
            error = np.float32(level * scales[lane]) - number
            squares[lane] += np.float32(error * error)
    best = 0
    for lane in range(1, _SCALES):
        best = lane if squares[lane] < squares[best] else best
    found: np.float32 = scales[best]
    return found


@device_function
def _divisor(scale: np.float32) -> np.float32:
    """Return the scale; 1 for that of numbers which are all zero, or as good as."""
    return scale if scale != 0 else np.float32(1)


@device_function
def _halves(step: np.float32) -> int:
    """Return the place in `nearest_codes` of so many levels."""
    halves = int(np.ceil(np.float32(2) * step))
    return min(max(halves, -MOST_HALVES), MOST_HALVES) + MOST_HALVES
