"""Weights packed once, in the order in which products read them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu import pack_kernel
from spaninfer_kernels_cpu.compiled import make_ready
from spaninfer_kernels_cpu.errors import DTypeError, FormatError, ShapeError
from spaninfer_kernels_cpu.layout import (
    CENTRE,
    PANEL,
    PARAMETER_BYTES,
    Format,
    Kind,
    Layout,
)
from spaninfer_kernels_cpu.threads import usable_cpus
from spaninfer_kernels_cpu.workers import share

CACHE_LINE = 64
NUMBERS_AT_ONCE = 1 << 20  # weights that are widened to float32 at a time: 4 MB beside the result

_SOURCES = (np.float32, np.float16, ml_dtypes.bfloat16)
_TYPES: dict[str, type] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight[outputs channels] in the memory order of `layout`; panels[P, bytes] uint8."""

    layout: Layout
    panels: NDArray[np.uint8]


def pack(weight: NDArray[np.generic], format: Format) -> Packed:
    """Return weight[O C] (float32, float16 or bfloat16) in a format.

    Codes are InstantQuant's: for every group of a row, the grid of 256 or 16 values from its least
    to its largest weight, with scale and middle rounded to bfloat16 so that the grid still holds
    both. Apart from the result, this takes some megabytes whatever the size of the weight.
    """
    if weight.dtype not in _SOURCES:
        raise DTypeError(f"weight holds {weight.dtype}; pack takes float32, float16 and bfloat16")
    if weight.ndim != 2 or 0 in weight.shape:
        raise ShapeError(f"weight: expected axes (O C), neither empty, got shape {weight.shape}")
    layout = Layout(format, *weight.shape)
    panels = _aligned(layout.panels, layout.panel_bytes)
    at_once = max(1, NUMBERS_AT_ONCE // (PANEL * layout.channels))
    kind = np.float32 if format.has_codes else _TYPES[format.kind]
    columns = layout.channels if format.has_codes else layout.padded_channels
    buffer: NDArray[Any] = np.zeros((min(at_once, len(panels)) * PANEL, columns), kind)
    for first in range(0, layout.panels, at_once):
        some = panels[first : first + at_once]
        rows = weight[first * PANEL : (first + len(some)) * PANEL]
        numbers = buffer[: len(some) * PANEL]
        numbers[: len(rows), : layout.channels] = rows
        numbers[len(rows) :] = 0
        if format.has_codes:
            _fill_codes(numbers, layout, some)
        else:
            _fill_numbers(numbers, layout, some)
    return Packed(layout, panels)


def unpack(packed: Packed) -> NDArray[np.float32]:
    """Return the weight[O C] that `packed` stands for."""
    layout = packed.layout
    if not layout.format.has_codes:
        numbers: NDArray[Any] = packed.panels.view(_TYPES[layout.format.kind])
        steps = numbers.reshape(layout.panels, layout.group_steps, PANEL, -1)
        rows = steps.swapaxes(1, 2).reshape(-1, layout.padded_channels)
        return rows[: layout.outputs, : layout.channels].astype(np.float32)
    records = packed.panels.reshape(layout.panels, layout.groups, layout.group_bytes)
    parameters = records[..., -PARAMETER_BYTES:].copy().view(ml_dtypes.bfloat16)
    scale, middle = np.moveaxis(
        parameters.astype(np.float32).reshape(*records.shape[:2], 2, PANEL, 1), (2, 3), (0, 2)
    )
    codes = _codes(records[..., :-PARAMETER_BYTES], layout.format.kind)
    grouped = (codes - np.float32(CENTRE[layout.format.kind])) * scale + middle
    rows = grouped[..., : layout.group_channels].reshape(layout.panels * PANEL, -1)
    weight: NDArray[np.float32] = rows[: layout.outputs, : layout.channels]
    return weight


def _aligned(*shape: int) -> NDArray[np.uint8]:
    """Return an uninitialised array that begins with a cache line, so that no load spans two."""
    size = math.prod(shape)
    memory = np.empty(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].reshape(shape)


def _codes(records: NDArray[np.uint8], kind: Kind) -> NDArray[np.uint8]:
    """Return the codes of records[P G bytes] as [P 64 G channels]."""
    codes = records.reshape(*records.shape[:2], -1, PANEL, 1, 4)
    if kind == "int4":
        codes = np.concatenate([codes & 15, codes >> 4], axis=4)
    return np.moveaxis(codes, 3, 1).reshape(len(records), PANEL, records.shape[1], -1)


def _fill_codes(numbers: NDArray[Any], layout: Layout, panels: NDArray[np.uint8]) -> None:
    """Write numbers[64 P, C] into panels[P, bytes] as codes, on every usable CPU."""
    if not np.isfinite(numbers).all():
        raise FormatError("weight holds a number that is not finite, which has no code")
    bits = 8 if layout.format.kind == "int8" else 4
    share(_code_packer(), (numbers, layout.group_channels, bits, panels), usable_cpus())


def _fill_numbers(numbers: NDArray[Any], layout: Layout, panels: NDArray[np.uint8]) -> None:
    """Write numbers[64 P, padded channels] into panels[P, bytes] as they are."""
    steps = numbers.reshape(len(panels), PANEL, layout.group_steps, -1).swapaxes(1, 2)
    panels.view(numbers.dtype).reshape(steps.shape)[:] = steps


@cache
def _code_packer() -> Callable[..., None]:
    make_ready(pack_kernel.pack_codes, pack_kernel.PACK_SIGNATURE)
    return pack_kernel.pack_codes
