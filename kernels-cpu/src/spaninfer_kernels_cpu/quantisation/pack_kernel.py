"""Weights quantised panel by panel, for Numba to compile; `packed` checks the arguments."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.array_view import numbers_at
from spaninfer_kernels_cpu.codegen.compiled import entry
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.memory import StackBytes, stack
from spaninfer_kernels_cpu.codegen.rounding import nearest_bf16, rounded
from spaninfer_kernels_cpu.quantisation.codes import UNIT
from spaninfer_kernels_cpu.quantisation.layout import PANEL, PARAMETER_BYTES, STEP_BYTES

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

SEARCHED_BITS = 3  # a search costs 120 ns a weight: only for the coarsest grids
_UNIT_ROOM = StackBytes(UNIT)
NARROWINGS, NARROWING = 5, np.float32(0.05)


@entry
def quantize_panel(
    weight: int, channels: int, group_channels: int, bits: int, panel: int, panel_bytes: int
) -> None:
    """Write the quantised values, scales and biases of weight[64, channels], float32, into a panel.

    Both are given by their addresses. Scale and bias are bfloat16: the bias is rounded to the
    nearest, and the scale, made for that bias, upwards, so that no weight lies outside the grid.
    """
    groups = (channels + group_channels - 1) // group_channels
    group_bytes = panel_bytes // groups
    code_bytes = group_bytes - PARAMETER_BYTES
    for group in range(groups):
        start = group * group_channels
        count = min(channels - start, group_channels)
        record = numbers_at(panel + group * group_bytes, group_bytes, np.uint8)
        parameters = record[code_bytes:].view(np.uint16)
        for output in range(PANEL):
            numbers = numbers_at(weight + 4 * (output * channels + start), count, np.float32)
            scale, group_bias = _grid(numbers, bits)
            if bits <= SEARCHED_BITS:
                scale, group_bias = _narrowed(numbers, bits, scale, group_bias)
            parameters[output] = _upper_half(scale)
            parameters[PANEL + output] = _upper_half(group_bias)
            _write_codes(numbers, scale, group_bias, bits, record[4 * output : code_bytes])


@device_function
def _grid(numbers: Floats, bits: int) -> tuple[np.float32, np.float32]:
    """Return scale and bias of a grid that reaches from the least to the largest number."""
    least, most = _ends(numbers)
    return _grid_over(least, most, bits)


@device_function
def _ends(numbers: Floats) -> tuple[np.float32, np.float32]:
    least = most = numbers[0]
    for i in range(len(numbers)):
        least = numbers[i] if numbers[i] < least else least
        most = numbers[i] if numbers[i] > most else most
    return least, most


@device_function
def _grid_over(least: np.float32, most: np.float32, bits: int) -> tuple[np.float32, np.float32]:
    """Return scale and bias of a grid that reaches from one number to another."""
    below = np.float32(1 << (bits - 1))
    above = below - np.float32(1)
    step = (most - least) / (below + above)
    group_bias = nearest_bf16(least + below * step)
    return _next_bf16(max((group_bias - least) / below, (most - group_bias) / above)), group_bias


@device_function
def _narrowed(
    numbers: Floats, bits: int, scale: np.float32, group_bias: np.float32
) -> tuple[np.float32, np.float32]:
    """Return scale and bias of the grid, narrower or not, whose errors' squares have least sum.

    Both ends move apart: NARROWINGS steps each, of NARROWING of what lies between them.
    """
    least, most = _ends(numbers)
    step = NARROWING * (most - least)
    best = _squares(numbers, bits, scale, group_bias)
    for low in range(NARROWINGS):
        for high in range(NARROWINGS):
            first, last = least + np.float32(low) * step, most - np.float32(high) * step
            one, bias = _grid_over(np.float32(first), np.float32(last), bits)
            error = _squares(numbers, bits, one, bias)
            if error < best:
                best, scale, group_bias = error, one, bias
    return scale, group_bias


@device_function
def _squares(numbers: Floats, bits: int, scale: np.float32, group_bias: np.float32) -> np.float32:
    """Return the sum of the squares of what a grid takes from numbers."""
    offset, total = 1 << (bits - 1), np.float32(0)
    for place in range(len(numbers)):
        code = _code(numbers, place, scale, group_bias, offset) - offset
        error = np.float32(code) * scale + group_bias - numbers[place]
        total += error * error
    return total


@device_function
def _write_codes(
    numbers: Floats, scale: np.float32, group_bias: np.float32, bits: int, codes: Bytes
) -> None:
    """Write a group's codes into planes, those that fill up the last unit too (`codes`)."""
    unsigned_offset = 1 << (bits - 1)
    whole = numbers_at(stack(_UNIT_ROOM), UNIT, np.uint8)
    for unit in range((len(codes) + STEP_BYTES - 4) // (STEP_BYTES * bits)):
        for i in range(UNIT):
            code = _code(numbers, unit * UNIT + i, scale, group_bias, unsigned_offset)
            whole[i] = np.uint8(code)
        planes, done = codes[unit * bits * STEP_BYTES :], 0
        for n in range(4):
            width = 8 >> n
            if bits & width != 0:
                _write_plane(whole, width, done, planes[done * STEP_BYTES :])
                done += width


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
    numbers: Floats, place: int, scale: np.float32, group_bias: np.float32, unsigned_offset: int
) -> int:
    """Return the unsigned code of a number; of places that only fill up, the offset."""
    if place >= len(numbers) or scale == 0:
        return unsigned_offset
    code = unsigned_offset + int(rounded((numbers[place] - group_bias) / scale))
    return min(max(code, 0), 2 * unsigned_offset - 1)


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
