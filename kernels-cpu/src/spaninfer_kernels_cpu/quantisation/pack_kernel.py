"""Weights quantised panel by panel, for Numba to compile; `packed` checks the arguments."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.array_view import numbers_at
from spaninfer_kernels_cpu.codegen.compiled import entry
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.memory import StackBytes, stack
from spaninfer_kernels_cpu.codegen.rounding import nearest_bf16, rounded
from spaninfer_kernels_cpu.quantisation.codes import LEVELS, PAIR_BITS, UNIT
from spaninfer_kernels_cpu.quantisation.layout import PANEL, PARAMETER_BYTES, STEP_BYTES

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

SEARCHED_LEVELS = 11  # a search costs 120 ns a weight: only for the coarsest grids
_UNIT_ROOM = StackBytes(2 * UNIT)
NARROWINGS, NARROWING = 5, np.float32(0.05)


class Groups(NamedTuple):
    """Channels of a group, groups of a record, bits of a code, levels of a channel."""

    channels: int
    together: int
    bits: int
    levels: int


@entry
def quantize_panel(
    weight: int, channels: int, group_channels: int, record_groups: int, levels: int, panel: int
) -> None:
    """Write the quantised values, scales and biases of weight[64, channels], float32, into a panel.

    Both are given by their addresses. Scale and bias are bfloat16: the bias is rounded to the
    nearest, and the scale, made for that bias, upwards, so that no weight lies outside the grid.
    """
    bits = _bits(levels)
    groups = Groups(group_channels, record_groups, bits, levels)
    width = record_groups * group_channels
    code_bytes = (width + _unit(bits) - 1) // _unit(bits) * bits * STEP_BYTES
    record_bytes = code_bytes + record_groups * PARAMETER_BYTES
    for number in range((channels + width - 1) // width):
        record = numbers_at(panel + number * record_bytes, record_bytes, np.uint8)
        for output in range(PANEL):
            row = weight + 4 * (output * channels + number * width)
            left = min(channels - number * width, width)
            _quantize_record(row, left, groups, record[4 * output :], record[code_bytes:], output)


@device_function
def _quantize_record(
    row: int, left: int, groups: Groups, codes: Bytes, behind: Bytes, output: int
) -> None:
    """Write what a record holds of an output, of whose row that many channels are left."""
    levels, piece = groups.levels, _unit(groups.bits) // groups.together
    whole = numbers_at(stack(_UNIT_ROOM), 2 * UNIT, np.uint8)
    for group in range(groups.together):
        start = group * groups.channels
        count = max(0, min(left - start, groups.channels))
        numbers = numbers_at(row + 4 * start, count, np.float32)
        scale, group_bias = np.float32(0), np.float32(0)
        if count > 0:
            scale, group_bias = _grid(numbers, levels)
            if levels <= SEARCHED_LEVELS:
                scale, group_bias = _narrowed(numbers, levels, scale, group_bias)
        parameters = behind[group * PARAMETER_BYTES :].view(np.uint16)
        parameters[output] = _upper_half(scale)
        parameters[PANEL + output] = _upper_half(group_bias)
        for number in range((groups.channels + piece - 1) // piece):
            for i in range(piece):
                code = _code(numbers, number * piece + i, scale, group_bias, levels)
                whole[group * piece + i] = np.uint8(code)
            if group == groups.together - 1:
                _write_unit(whole, groups.bits, codes[number * groups.bits * STEP_BYTES :])


@device_function
def _unit(bits: int) -> int:
    """Return the channels of a unit (`codes`)."""
    return 2 * UNIT if bits == PAIR_BITS else UNIT


@device_function
def _bits(levels: int) -> int:
    """Return the bits of a code of channels with that many levels."""
    if levels == LEVELS:
        return PAIR_BITS
    bits = 0
    while 1 << bits < levels:
        bits += 1
    return bits


@device_function
def _grid(numbers: Floats, levels: int) -> tuple[np.float32, np.float32]:
    """Return scale and bias of a grid that reaches from the least to the largest number."""
    least, most = _ends(numbers)
    return _grid_over(least, most, levels)


@device_function
def _ends(numbers: Floats) -> tuple[np.float32, np.float32]:
    least = most = numbers[0]
    for i in range(len(numbers)):
        least = numbers[i] if numbers[i] < least else least
        most = numbers[i] if numbers[i] > most else most
    return least, most


@device_function
def _grid_over(least: np.float32, most: np.float32, levels: int) -> tuple[np.float32, np.float32]:
    """Return scale and bias of a grid that reaches from one number to another."""
    below = np.float32(levels // 2)
    above = np.float32(levels - 1) - below
    step = (most - least) / (below + above)
    group_bias = nearest_bf16(least + below * step)
    return _next_bf16(max((group_bias - least) / below, (most - group_bias) / above)), group_bias


@device_function
def _narrowed(
    numbers: Floats, levels: int, scale: np.float32, group_bias: np.float32
) -> tuple[np.float32, np.float32]:
    """Return scale and bias of the grid, narrower or not, whose errors' squares have least sum.

    Both ends move apart: NARROWINGS steps each, of NARROWING of what lies between them.
    """
    least, most = _ends(numbers)
    step = NARROWING * (most - least)
    best = _squares(numbers, levels, scale, group_bias)
    for low in range(NARROWINGS):
        for high in range(NARROWINGS):
            first, last = least + np.float32(low) * step, most - np.float32(high) * step
            one, bias = _grid_over(np.float32(first), np.float32(last), levels)
            error = _squares(numbers, levels, one, bias)
            if error < best:
                best, scale, group_bias = error, one, bias
    return scale, group_bias


@device_function
def _squares(numbers: Floats, levels: int, scale: np.float32, group_bias: np.float32) -> np.float32:
    """Return the sum of the squares of what a grid takes from numbers."""
    total = np.float32(0)
    for place in range(len(numbers)):
        code = _code(numbers, place, scale, group_bias, levels) - levels // 2
        error = np.float32(code) * scale + group_bias - numbers[place]
        total += error * error
    return total


@device_function
def _write_unit(whole: Bytes, bits: int, words: Bytes) -> None:
    """Write the codes of a unit, of an output whose words begin here (`codes`)."""
    if bits == PAIR_BITS:
        _write_pairs(whole, words)
        return
    done = 0
    for n in range(4):
        width = 8 >> n
        if bits & width != 0:
            _write_plane(whole, width, done, words[done * STEP_BYTES :])
            done += width


@device_function
def _write_pairs(whole: Bytes, words: Bytes) -> None:
    """Write seven words of the eight that pairs would take with a bit of nothing each."""
    for byte in range(4):
        rest = 0
        for half in range(2):
            fourth = _pair(whole, 4 * half + 3, byte)
            rest |= (fourth & 15) << 4 * half
            for place in range(3):
                above = fourth >> (4 + place) << 7 & 128
                word = (4 * half + place) * STEP_BYTES
                words[word + byte] = np.uint8(_pair(whole, 4 * half + place, byte) | above)
        words[3 * STEP_BYTES + byte] = np.uint8(rest)


@device_function
def _pair(whole: Bytes, fours: int, byte: int) -> int:
    """Return the code of a channel of two fours of a unit."""
    first = int(whole[8 * fours + byte])
    return first + LEVELS * int(whole[8 * fours + 4 + byte])


@device_function
def _write_plane(whole: Bytes, width: int, first: int, plane: Bytes) -> None:
    """Write `width` bits of the codes of a unit, from bit `first` on, into words."""
    mask, steps = (1 << width) - 1, 8 // width
    for word in range(width):
        for byte in range(4):
            bits = 0
            for step in range(steps):
                code = int(whole[4 * (word * steps + step) + byte])
                bits |= (code >> first & mask) << step * width
            plane[word * STEP_BYTES + byte] = np.uint8(bits)


@device_function
def _code(
    numbers: Floats, place: int, scale: np.float32, group_bias: np.float32, levels: int
) -> int:
    """Return the unsigned code of a number; of places that only fill up, the middle."""
    if place >= len(numbers) or scale == 0:
        return levels // 2
    code = levels // 2 + int(rounded((numbers[place] - group_bias) / scale))
    return min(max(code, 0), levels - 1)


# ---- numbers -----------------------------------------------------------------------------------


@device_function
def _next_bf16(x: np.float32) -> np.float32:
    """Return the least bfloat16 that is not below x, which is not negative."""
    bits = np.uint32(np.float32(x).view(np.uint32) + np.uint32(0xFFFF))
    return np.uint32(bits & np.uint32(0xFFFF0000)).view(np.float32)


@device_function
def _upper_half(x: np.float32) -> np.uint16:
    """Return the bits of a float32 that is a bfloat16."""
    return np.uint16(np.uint32(np.float32(x).view(np.uint32)) >> np.uint32(16))
