"""Codes that others made, in the memory order of products: nothing is quantised anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.memory import aligned
from spaninfer_kernels_cpu.errors import FormatError, ShapeError
from spaninfer_kernels_cpu.quantisation.layout import (
    PANEL,
    PARAMETER_BYTES,
    UNSIGNED_OFFSET,
    Format,
    Layout,
)
from spaninfer_kernels_cpu.quantisation.packed import Packed
from spaninfer_kernels_cpu.runtime.numa import numa_nodes, place

PANELS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class GroupedCodes:
    """A stack of weights[N O C] as (codes - offset) * scales + biases; the offset is the format's.

    codes           uint8 [N O C], below 16 in int4
    scales, biases  float32 [N O G], rounded to bfloat16 when packed
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    biases: NDArray[np.float32]


def pack_codes(parts: Sequence[GroupedCodes], format: Format) -> Packed:
    """Return N weights, each of the rows of all parts below one another, in int8 or int4.

    Raises ShapeError unless codes, scales and biases fit one another and the format's groups,
    FormatError for formats without codes.
    """
    if not format.is_quantised:
        raise FormatError(f"format is {format.kind}; codes are packed in int8 or int4")
    count, _, channels = parts[0].codes.shape
    layout = Layout(format, sum(part.codes.shape[1] for part in parts), channels)
    for part in parts:
        _check(part, count, layout)
    panels = aligned((count * layout.panels, layout.panel_bytes), np.uint8)
    place(panels, numa_nodes())
    for number in range(count):
        codes = np.concatenate([part.codes[number] for part in parts])
        scales = np.concatenate([part.scales[number] for part in parts])
        biases = np.concatenate([part.biases[number] for part in parts])
        own = panels[number * layout.panels : (number + 1) * layout.panels]
        for first in range(0, layout.panels, PANELS_AT_ONCE):
            some = slice(first * PANEL, (first + PANELS_AT_ONCE) * PANEL)
            _fill(codes[some], scales[some], biases[some], layout, own[first:])
    return Packed(layout, panels, count)


def _check(part: GroupedCodes, count: int, layout: Layout) -> None:
    shape = count, part.codes.shape[1], layout.channels
    groups = (*shape[:2], layout.groups)
    if part.codes.shape != shape or not part.scales.shape == part.biases.shape == groups:
        raise ShapeError(
            f"codes: expected uint8 {shape} with scales and biases {groups}, got "
            f"{part.codes.shape}, {part.scales.shape} and {part.biases.shape}"
        )


def _fill(
    codes: NDArray[np.uint8],
    scales: NDArray[np.float32],
    biases: NDArray[np.float32],
    layout: Layout,
    panels: NDArray[np.uint8],
) -> None:
    """Write codes[O C] of some panels, the last of them filled up, into panels[P, bytes]."""
    count = -(-len(codes) // PANEL)
    records = panels[:count].reshape(count, layout.groups, layout.group_bytes)
    steps = _steps(codes, layout, count)
    records[..., :-PARAMETER_BYTES] = steps.reshape(count, layout.groups, -1)
    parameters = np.zeros((2, count * PANEL, layout.groups), ml_dtypes.bfloat16)
    parameters[0, : len(scales)], parameters[1, : len(biases)] = scales, biases
    by_group = parameters.reshape(2, count, PANEL, -1).transpose(1, 3, 0, 2)
    bits = np.ascontiguousarray(by_group).view(np.uint8)
    records[..., -PARAMETER_BYTES:] = bits.reshape(count, layout.groups, -1)


def _steps(codes: NDArray[np.uint8], layout: Layout, count: int) -> NDArray[np.uint8]:
    """Return the bytes [P G steps 64 4] of codes[O C]; places that only fill up hold the offset."""
    kind, groups, width = layout.format.kind, layout.groups, layout.group_channels
    shape = count * PANEL, groups, layout.padded_channels
    filled: NDArray[Any] = np.full(shape, UNSIGNED_OFFSET[kind], np.uint8)
    whole = layout.channels // width
    cut = whole * width
    filled[: len(codes), :whole, :width] = codes[:, :cut].reshape(len(codes), whole, width)
    if cut < layout.channels:
        filled[: len(codes), whole, : layout.channels - cut] = codes[:, cut:]
    if kind == "int4":
        halves = filled.reshape(count, PANEL, groups, layout.group_steps, 2, 4)
        filled = halves[..., 0, :] | halves[..., 1, :] << np.uint8(4)
    steps = filled.reshape(count, PANEL, groups, layout.group_steps, 4)
    return steps.transpose(0, 2, 3, 1, 4)
