"""Panels written from weights or from codes, for Numba to compile.

`packed` and `pack_codes` check the arguments.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.compiled import entry
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import bits_of, float_of
from spaninfer_kernels_cpu.codegen.memory import StackBytes, stack
from spaninfer_kernels_cpu.codegen.rounding import ROUNDER, nearest_bf16, rounded
from spaninfer_kernels_cpu.quantisation.codes import LEVELS, PAIR_BITS, UNIT
from spaninfer_kernels_cpu.quantisation.layout import PANEL, PARAMETER_BYTES, STEP_BYTES

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Floats = NDArray[np.float32]

SEARCHED_LEVELS = 11  # a search costs 16 ns a weight, and the rest 3: only for the coarsest grids
_LARGEST = np.float32(0x7FFF)  # of a code of 16 bits
_ROUNDED_BY = 0.51  # the most that rounding adds to one, and to the quotient that is rounded
_FOUR = np.uint32(0x01010101)  # the lowest bit of each of four bytes
_UNIT_ROOM = StackBytes(2 * UNIT)
NARROWINGS, NARROWING = 5, np.float32(0.05)
GRIDS = NARROWINGS * NARROWINGS
_GRIDS_ROOM = StackBytes(3 * 4 * GRIDS)


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
        codes = panel + number * record_bytes
        behind = numbers_at(codes + code_bytes, record_groups * PARAMETER_BYTES, np.uint8)
        for output in range(PANEL):
            row = weight + 4 * (output * channels + number * width)
            left = min(channels - number * width, width)
            _quantize_record(row, left, groups, codes + 4 * output, behind, output)


@entry
def quantize_wide_panel(weight: int, channels: int, group: int, mean: int, panel: int) -> None:
    """Write weight[64, channels], float32, into a panel as codes of 16 bits.

    A group has the least scale, rounded upwards to bfloat16, by which its codes have no more than
    16 bits, and sizes of no more than `mean` in the mean.
    """
    code_bytes = 2 * PANEL * group
    for number in range((channels + group - 1) // group):
        record = panel + number * (code_bytes + 2 * PANEL)
        codes = numbers_at(record, PANEL * group, np.int16)
        scales = numbers_at(record + code_bytes, PANEL, np.uint16)
        count = min(channels - number * group, group)
        for output in range(PANEL):
            numbers = floats_at(weight + 4 * (output * channels + number * group), count)
            largest, total = np.float32(0), 0.0
            for i in range(count):
                largest = max(largest, abs(numbers[i]))
                total += np.float64(abs(numbers[i]))
            by_sum = np.float32(total / ((mean - _ROUNDED_BY) * group))
            scale = _next_bf16(max(largest / _LARGEST, by_sum))
            scales[output] = upper_half(scale)
            step = scale if scale != 0 else np.float32(1)
            for i in range(group):
                word, half = i // 4 * 2 + i % 2, i // 2 % 2
                code = rounded(numbers[i] / step) if i < count else np.int32(0)
                codes[2 * (word * PANEL + output) + half] = np.int16(code)


@entry
def write_codes(
    codes: int, rows: int, channels: int, record: int, bits: int, record_bytes: int, at: int
) -> None:
    """Write codes[rows, channels], uint8, of at most 64 outputs into a panel of zeros.

    Codes are given by their address, the panel by that of its first record's codes; a record has
    `record` channels. Channels that fill up the last unit stay zero.
    """
    unit, place = _unit(bits), stack(_UNIT_ROOM)
    for number in range((channels + record - 1) // record):
        first = number * record
        count = min(channels - first, record)
        for output in range(rows):
            row = codes + output * channels + first
            words = at + number * record_bytes + 4 * output
            for start in range(0, count, unit):
                whole = row + start
                if count - start < unit:
                    _copy_filled(whole, count - start, place)
                    whole = place
                write_unit(whole, bits, words)
                words += bits * STEP_BYTES


@device_function
def _copy_filled(codes: int, count: int, place: int) -> None:
    """Copy codes to a place for a unit, and zeros behind them."""
    given, copied = numbers_at(codes, count, np.uint8), numbers_at(place, 2 * UNIT, np.uint8)
    for i in range(2 * UNIT):
        copied[i] = given[i] if i < count else np.uint8(0)


@device_function
def _quantize_record(
    row: int, left: int, groups: Groups, codes: int, behind: Bytes, output: int
) -> None:
    """Write what a record holds of an output, of whose row that many channels are left."""
    levels, piece = groups.levels, _unit(groups.bits) // groups.together
    place = stack(_UNIT_ROOM)
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
        parameters[output] = upper_half(scale)
        parameters[PANEL + output] = upper_half(group_bias)
        some = numbers_at(place + group * piece, piece, np.uint8)
        for number in range((groups.channels + piece - 1) // piece):
            _write_levels(numbers[number * piece :], levels, scale, group_bias, some)
            if group == groups.together - 1:
                write_unit(place, groups.bits, codes + number * groups.bits * STEP_BYTES)


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
    """Return the least and the largest number.

    As whole numbers in the same order: LLVM makes vectors of them, and of floats that may be NaN
    it does not.
    """
    least = most = _ordered(bits_of(numbers[0]))
    for i in range(len(numbers)):
        one = _ordered(bits_of(numbers[i]))
        least = one if one < least else least
        most = one if one > most else most
    return float_of(_ordered(least)), float_of(_ordered(most))


@device_function
def _ordered(bits: np.int32) -> np.int32:
    """Return the bits of a float32 as a whole number, less than another's where the float is.

    It is its own inverse.
    """
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


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

    Both ends move apart: NARROWINGS steps each, of NARROWING of what lies between them. All grids
    see a number before the next one does, so they are lanes of vectors, and the sums are still
    those of `quantize_to_grid`: 16 ns a weight instead of 86 (Zen 3).
    """
    if scale == 0:
        return scale, group_bias
    room = stack(_GRIDS_ROOM)
    scales, biases = floats_at(room, GRIDS), floats_at(room + 4 * GRIDS, GRIDS)
    squares = floats_at(room + 8 * GRIDS, GRIDS)
    least, most = _ends(numbers)
    step = NARROWING * (most - least)
    scales[0], biases[0] = scale, group_bias  # as the narrowest steps, none, give them
    for grid in range(1, GRIDS):
        low, high = np.float32(grid // NARROWINGS), np.float32(grid % NARROWINGS)
        first, last = least + low * step, most - high * step
        scales[grid], biases[grid] = _grid_over(np.float32(first), np.float32(last), levels)
    _add_squares(numbers, levels, scales, biases, squares)
    best = 0
    for grid in range(1, GRIDS):
        best = grid if squares[grid] < squares[best] else best
    return scales[best], biases[best]


@device_function
def _add_squares(
    numbers: Floats, levels: int, scales: Floats, biases: Floats, squares: Floats
) -> None:
    """Write the sum of the squares of what each grid takes from numbers."""
    least, most = _ends_of_levels(levels)
    for grid in range(GRIDS):
        squares[grid] = np.float32(0)
    for place in range(len(numbers)):
        number = numbers[place]
        for grid in range(GRIDS):
            level = _level((number - biases[grid]) / scales[grid], least, most)
            error = np.float32(np.float32(level * scales[grid]) + biases[grid]) - number
            squares[grid] += np.float32(error * error)


@device_function
def write_unit(codes: int, bits: int, words: int) -> None:
    """Write the codes of a unit, of an output whose words begin here (`codes`)."""
    if bits == PAIR_BITS:
        _write_pairs(numbers_at(codes, 2 * UNIT, np.uint8), words)
        return
    fours = numbers_at(codes, UNIT // 4, np.uint32)  # channels apart by a byte
    out = numbers_at(words, bits * PANEL, np.uint32)
    done = 0  # bits; widths are literals, so that shifts are
    if bits & 8:
        _write_plane(fours, 8, 0, out)
        done = 8
    if bits & 4:
        _write_plane(fours, 4, done, out[done * PANEL :])
        done += 4
    if bits & 2:
        _write_plane(fours, 2, done, out[done * PANEL :])
        done += 2
    if bits & 1:
        _write_plane(fours, 1, done, out[done * PANEL :])


@device_function
def _write_pairs(whole: Bytes, words: int) -> None:
    """Write seven words of the eight that pairs would take with a bit of nothing each."""
    out = numbers_at(words, PAIR_BITS * STEP_BYTES, np.uint8)
    for byte in range(4):
        rest = 0
        for half in range(2):
            fourth = _pair(whole, 4 * half + 3, byte)
            rest |= (fourth & 15) << 4 * half
            for place in range(3):
                above = fourth >> (4 + place) << 7 & 128
                word = (4 * half + place) * STEP_BYTES
                out[word + byte] = np.uint8(_pair(whole, 4 * half + place, byte) | above)
        out[3 * STEP_BYTES + byte] = np.uint8(rest)


@device_function
def _pair(whole: Bytes, fours: int, byte: int) -> int:
    """Return the code of a channel of two fours of a unit."""
    first = int(whole[8 * fours + byte])
    return first + LEVELS * int(whole[8 * fours + 4 + byte])


@device_function
def _write_plane(fours: Words, width: int, first: int, plane: Words) -> None:
    """Write `width` bits of the codes of a unit, from bit `first` on, into words.

    Four codes at a time: byte by byte it took eight times as long (Zen 3).
    """
    mask, steps = _FOUR * np.uint32((1 << width) - 1), 8 // width
    for word in range(width):
        bits = np.uint32(0)
        for step in range(steps):
            some = fours[word * steps + step] >> np.uint32(first) & mask
            bits |= some << np.uint32(step * width)
        plane[word * PANEL] = bits


@device_function
def _write_levels(
    numbers: Floats, levels: int, scale: np.float32, group_bias: np.float32, codes: Bytes
) -> None:
    """Write the unsigned codes of as many numbers as there is room for; behind them, the middle."""
    middle = levels // 2
    least, most = _ends_of_levels(levels)
    step = scale if scale != 0 else np.float32(1)  # all numbers are the bias then
    count = min(len(numbers), len(codes))
    for i in range(count):
        level = _level((numbers[i] - group_bias) / step, least, most)
        codes[i] = np.uint8(np.int32(level - least))
    for i in range(count, len(codes)):
        codes[i] = np.uint8(middle)


@device_function
def _ends_of_levels(levels: int) -> tuple[np.float32, np.float32]:
    """Return the least and the largest level, counted from the middle."""
    least = np.float32(-(levels // 2))
    return least, np.float32(levels - 1) + least


@device_function
def _level(steps: np.float32, least: np.float32, most: np.float32) -> np.float32:
    """Return the level nearest to so many steps from the middle."""
    level = np.float32(np.float32(steps + ROUNDER) - ROUNDER)
    return least if level < least else most if level > most else level


# ---- numbers -----------------------------------------------------------------------------------


@device_function
def _next_bf16(x: np.float32) -> np.float32:
    """Return the least bfloat16 that is not below x, which is not negative."""
    bits = np.uint32(np.float32(x).view(np.uint32) + np.uint32(0xFFFF))
    return np.uint32(bits & np.uint32(0xFFFF0000)).view(np.float32)


@device_function
def upper_half(x: np.float32) -> np.uint16:
    """Return the bits of a float32 that is a bfloat16."""
    return np.uint16(np.uint32(np.float32(x).view(np.uint32)) >> np.uint32(16))
