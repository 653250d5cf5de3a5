"""Weights packed once, in the order in which products read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from spaninfer_host_limits import usable_cpus

from spaninfer_kernels_cpu.errors import DTypeError, FormatError, ShapeError, demand_size
from spaninfer_kernels_cpu.quantisation.layout import (
    PANEL,
    Format,
    Layout,
)
from spaninfer_kernels_cpu.quantisation.pack_kernel import quantize_panel, quantize_wide_panel
from spaninfer_kernels_cpu.quantisation.table_kernel import (
    nearest_codes,
    nearest_levels,
    round_panel,
)
from spaninfer_kernels_cpu.quantisation.unpack_codes import unpack_codes
from spaninfer_kernels_cpu.runtime.call import MAX_SIZE
from spaninfer_kernels_cpu.runtime.numa import numa_nodes, place
from spaninfer_kernels_cpu.runtime.weight_memory import weight_memory
from spaninfer_kernels_cpu.runtime.workers import share

NUMBERS_AT_ONCE = 1 << 20  # weights that are widened to float32 at a time: 4 MB beside the result
MAX_WORKERS = 16  # each has a panel at least beside the result; eight are five times one (float32)

_SOURCES = (np.float32, np.float16, ml_dtypes.bfloat16)
_TYPES: dict[str, type] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight[outputs channels] in the memory order of `layout`; panels[P, bytes] uint8.

    Or `count` of them, of experts or of heads, whose panels follow one another.
    """

    layout: Layout
    panels: NDArray[np.uint8]
    count: int = 1

    def __post_init__(self) -> None:
        """Raise ShapeError unless the panels are as many and as large as the layout says."""
        layout, panels = self.layout, self.panels
        demand_size("outputs", layout.outputs, 1, MAX_SIZE)
        demand_size("channels", layout.channels, 1, MAX_SIZE)
        demand_size("count", self.count, 1, MAX_SIZE)
        shape = (self.count * layout.panels, layout.panel_bytes)
        if panels.dtype != np.uint8 or panels.shape != shape or not panels.flags.c_contiguous:
            raise ShapeError(
                f"panels: expected contiguous uint8 {shape} for {self.count} weights "
                f"[{layout.outputs} {layout.channels}], got {panels.dtype} {panels.shape}"
            )

    def __getitem__(self, number: int) -> Packed:
        """Return one of several weights, in the same memory; IndexError if there is none."""
        if not 0 <= number < self.count:
            raise IndexError(f"number {number} of {self.count} weights; they count from 0")
        each = self.layout.panels
        return Packed(self.layout, self.panels[number * each : (number + 1) * each])


def pack(weight: NDArray[np.generic], format: Format) -> Packed:
    """Pack weight[O C] (float32, float16 or bfloat16) into a format.

    Quantised values are InstantQuant's: for every group of a row, the grid of 2^bits values (of 11
    in int3.5) from its least to its largest weight, with scale and bias rounded to bfloat16 so that
    the grid still holds both. In 2, 3 and 3.5 bits it is the narrower grid whose errors' squares
    have the least sum. `spaninfer_op_reference.quantize_to_grid` defines them to the bit, and
    `quantize_to_table` those of iq4_nl: uneven levels, with the best of twelve scales. Those of
    w13a13 are symmetric: sizes of a group's codes are 4,095 in the mean at most, 12,000 the largest
    where weights are normal.
    Apart from the result, this takes some megabytes whatever the size of the weight.
    """
    if weight.ndim != 2 or 0 in weight.shape:
        raise ShapeError(f"weight: expected axes (O C), neither empty, got shape {weight.shape}")
    return pack_stack([weight[None]], format)


def pack_stack(parts: Sequence[NDArray[np.generic]], format: Format) -> Packed:
    """Return N weights, each packed as `pack` does it: of experts, or of heads.

    Weight n is parts[0][n] and below it parts[1][n] and so on: every part has axes (N O C), and
    only O differs between them.
    """
    stacks = {(len(part), *part.shape[2:]) for part in parts}
    if len(stacks) != 1 or any(part.ndim != 3 or 0 in part.shape for part in parts):
        shapes = ", ".join(str(part.shape) for part in parts)
        raise ShapeError(f"weights: expected axes (N O C), none empty, N and C equal, got {shapes}")
    for part in parts:
        if part.dtype not in _SOURCES:
            raise DTypeError(f"weight holds {part.dtype}; pack takes float32, float16 and bfloat16")
    if format.form is not None:
        raise FormatError("weights are not quantised to codes of a form; give one of int2 to int8")
    count, channels = stacks.pop()
    layout = Layout(format, sum(part.shape[1] for part in parts), channels)
    panels = weight_memory((count * layout.panels, layout.panel_bytes))
    place(panels, numa_nodes())
    for number in range(count):
        rows = [part[number] for part in parts]
        _fill(rows, layout, panels[number * layout.panels : (number + 1) * layout.panels])
    return Packed(layout, panels, count)


def _fill(parts: Sequence[NDArray[np.generic]], layout: Layout, panels: NDArray[np.uint8]) -> None:
    """Write parts[O C], one below the other, into panels[P, bytes], on every usable CPU."""
    workers = min(usable_cpus(), MAX_WORKERS)
    at_once = max(1, NUMBERS_AT_ONCE // (PANEL * layout.channels * workers))
    is_quantised = layout.format.is_quantised
    kind = np.float32 if is_quantised else _TYPES[layout.format.kind]
    columns = layout.channels if is_quantised else layout.padded_channels
    fill = _quantise if is_quantised else _fill_numbers
    starts = iter(range(0, layout.panels, at_once))  # which threads take from

    def work() -> None:
        buffer: NDArray[Any] = np.zeros((min(at_once, len(panels)) * PANEL, columns), kind)
        for first in starts:
            some = panels[first : first + at_once]
            numbers = buffer[: len(some) * PANEL]
            numbers[_copy_rows(parts, first * PANEL, numbers[:, : layout.channels]) :] = 0
            fill(numbers, layout, some)

    share(work, min(workers, -(-layout.panels // at_once)))


def _copy_rows(parts: Sequence[NDArray[np.generic]], first: int, out: NDArray[Any]) -> int:
    """Copy rows of parts[O C] that lie below one another, from row `first` on; return how many."""
    done = 0
    for part in parts:
        rows = part[max(0, first) :][: len(out) - done]
        _assign(out[done : done + len(rows)], rows)
        done += len(rows)
        first -= len(part)
    return done


def _assign(out: NDArray[Any], rows: NDArray[np.generic]) -> None:
    """Write rows into `out`; bfloat16, which NumPy converts one thread at a time, by its bits."""
    if rows.dtype != ml_dtypes.bfloat16:
        out[:] = rows
    elif out.dtype == rows.dtype:
        out.view(np.uint16)[:] = rows.view(np.uint16)
    else:
        np.left_shift(rows.view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)


def unpack(packed: Packed) -> NDArray[np.float32]:
    """Return the weight[O C] that `packed` stands for."""
    layout = packed.layout
    if layout.format.codes is not None:
        return unpack_codes(packed.panels, layout, layout.format.codes)
    numbers: NDArray[Any] = packed.panels.view(_TYPES[layout.format.kind])
    steps = numbers.reshape(layout.panels, layout.record_steps, PANEL, -1)
    rows = steps.swapaxes(1, 2).reshape(-1, layout.padded_channels)
    return rows[: layout.outputs, : layout.channels].astype(np.float32)


def _fill_numbers(numbers: NDArray[Any], layout: Layout, panels: NDArray[np.uint8]) -> None:
    """Write numbers[64 P, padded channels] into panels[P, bytes] as they are."""
    steps = numbers.view(np.uint32).reshape(len(panels), PANEL, layout.record_steps)
    panels.view(np.uint32).reshape(len(panels), layout.record_steps, PANEL)[:] = steps.swapaxes(
        1, 2
    )


def _quantise(numbers: NDArray[Any], layout: Layout, panels: NDArray[np.uint8]) -> None:
    """Write numbers[64 P, C] into panels[P, bytes] quantised."""
    if not np.isfinite(numbers).all():
        raise FormatError("weight holds a number that is not finite, which has no code")
    codes = layout.format.codes
    assert codes is not None
    sizes = layout.channels, layout.group_channels
    for number, panel in enumerate(panels):
        source = numbers[number * PANEL :].ctypes.data
        if codes.table is not None:
            tables = nearest_codes(codes).ctypes.data, nearest_levels(codes).ctypes.data
            round_panel(source, *sizes, *tables, panel.ctypes.data)
        elif codes.is_wide:
            quantize_wide_panel(source, *sizes, codes.most, panel.ctypes.data)
        else:
            quantize_panel(source, *sizes, codes.record_groups, codes.levels, panel.ctypes.data)
