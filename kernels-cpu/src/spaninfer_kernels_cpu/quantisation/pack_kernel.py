"""Weights quantised panel by panel, for Numba to compile; `packed` checks the arguments."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.array_view import numbers_at
from spaninfer_kernels_cpu.codegen.compiled import entry
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.rounding import nearest_bf16, rounded
from spaninfer_kernels_cpu.quantisation.layout import PANEL, PARAMETER_BYTES, STEP_BYTES

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


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
            parameters[output] = _upper_half(scale)
            parameters[PANEL + output] = _upper_half(group_bias)
            codes = record[4 * output : code_bytes]
            if bits == 8:
                _write_bytes(numbers, scale, group_bias, codes)
            else:
                _write_nibbles(numbers, scale, group_bias, codes)


@device_function
def _grid(numbers: Floats, bits: int) -> tuple[np.float32, np.float32]:
    """Return scale and bias of a grid that reaches from the least to the largest number."""
    least = most = numbers[0]
    for i in range(len(numbers)):
        least = numbers[i] if numbers[i] < least else least
        most = numbers[i] if numbers[i] > most else most
    below = np.float32(1 << (bits - 1))
    above = below - np.float32(1)
    step = (most - least) / (below + above)
    group_bias = nearest_bf16(least + below * step)
    return _next_bf16(max((group_bias - least) / below, (most - group_bias) / above)), group_bias


@device_function
def _write_bytes(numbers: Floats, scale: np.float32, group_bias: np.float32, codes: Bytes) -> None:
    """Write four channels in a row, those that fill up the last step too."""
    for place in range((len(codes) + STEP_BYTES - 4) // STEP_BYTES * 4):
        code = _code(numbers, place, scale, group_bias, 128)
        codes[place // 4 * STEP_BYTES + place % 4] = code


@device_function
def _write_nibbles(
    numbers: Floats, scale: np.float32, group_bias: np.float32, codes: Bytes
) -> None:
    """Write channels 0-3 of a step into low halves of bytes, 4-7 into high ones."""
    for place in range((len(codes) + STEP_BYTES - 4) // STEP_BYTES * 4):
        low = place // 4 * 8 + place % 4
        first = _code(numbers, low, scale, group_bias, 8)
        second = _code(numbers, low + 4, scale, group_bias, 8)
        codes[place // 4 * STEP_BYTES + place % 4] = first | second << 4


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
