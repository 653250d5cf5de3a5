"""Products with packed weights as calls: first the rows made ready, then the product itself.

out = x @ weight.T + bias, or residual + scale * (that); float32. What rows of x become depends on
the weight (see `recipe`): codes with a scale and a sum per group, bfloat16, or just themselves.
They are written to scratch memory, which the calls of one step may share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from spaninfer_kernels_cpu.call import ROWS, WANTED, Call, Kernel, Rows, address_of, real, word
from spaninfer_kernels_cpu.constants import Constant
from spaninfer_kernels_cpu.elements import BFLOAT16, FLOAT32, read, write
from spaninfer_kernels_cpu.in_kernel import in_kernel
from spaninfer_kernels_cpu.layout import PANEL, ROW_PARAMETER_BYTES, Layout
from spaninfer_kernels_cpu.pack_kernel import _row_scale, _widen, _write_row_codes
from spaninfer_kernels_cpu.packed import Packed
from spaninfer_kernels_cpu.pointer import floats_at, numbers_at
from spaninfer_kernels_cpu.products_kernel import ROWS_PER_TASK, fill_tile
from spaninfer_kernels_cpu.recipe import Recipe, recipes
from spaninfer_kernels_cpu.tiers import chosen
from spaninfer_kernels_cpu.vectors import check_intrinsics

Floats = NDArray[np.float32]
Sizes: TypeAlias = tuple[int, int, int, int]

READY_ROWS_PER_TASK = 4


def scratch_bytes(layout: Layout, *, rounded: bool = False) -> int:
    """Return the bytes of scratch memory per row that `product_calls` wants; 0 if none."""
    one, _ = recipes(layout.format.kind, rounded=rounded, tier=chosen())
    bytes_per_row = layout.groups * layout.padded_channels * one.channel_bytes
    if layout.format.has_codes:
        return bytes_per_row + layout.groups * ROW_PARAMETER_BYTES
    return 0 if one.way == "fma" and layout.padded_channels == layout.channels else bytes_per_row


def product_calls(
    x: Rows,
    weight: Packed,
    *,
    out: Rows,
    scratch: int,
    bias: Floats | None = None,
    residual: Rows | None = None,
    scale: float = 1.0,
    rounded: bool = False,
    wanted: bool = False,
) -> list[Call]:
    """Return the calls that write x @ weight.T + bias to out, or residual + scale * that.

    `scratch` has `scratch_bytes` per row; `rounded`: x may be rounded to bfloat16 where weights are
    that and the CPU multiplies both so; `wanted`: the rows are those whose logits are wanted. The
    caller keeps weight and bias[O] alive. `out` may be `residual`; neither may be `x`.
    """
    layout = weight.layout
    one, many = recipes(layout.format.kind, rounded=rounded, tier=chosen())
    count = WANTED if wanted else ROWS
    stride = scratch_bytes(layout, rounded=rounded)
    calls = []
    if stride:
        ready = Rows(scratch, stride)
        channels = (layout.channels, layout.group_channels, layout.padded_channels)
        way = _CODE if layout.format.has_codes else _NARROW if one.way != "fma" else _PAD
        row = (x.address, x.stride, *channels, one.channel_bytes, scratch, stride)
        calls.append(Call(_readying(way), row, 1, READY_ROWS_PER_TASK, count))
        x = ready
    words = (
        *(weight.panels.ctypes.data, layout.panel_bytes, layout.groups),
        *(x.address, x.stride, stride // layout.groups if stride else x.stride),
        *(out.address, out.stride, layout.outputs),
        0 if bias is None else bias.ctypes.data,
        *((0, 0) if residual is None else (residual.address, residual.stride)),
        float(scale),
    )
    calls.append(Call(_product(one, many), words, layout.panels, ROWS_PER_TASK, count))
    return calls


@cache
def _product(one_row: Recipe, many_rows: Recipe) -> int:
    check_intrinsics()
    return address_of(product_kernel(one_row, many_rows))


# ---- rows made ready -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Readying(Constant):
    """How rows are made ready: "code", "narrow" to bfloat16, or "pad" with zeros."""

    name: str


@cache
def _readying(way: Readying) -> int:
    def make_ready(words: int, rows: int, task: int) -> None:
        first = task * READY_ROWS_PER_TASK
        for row in range(first, min(rows, first + READY_ROWS_PER_TASK)):
            source = word(words, 0) + row * word(words, 1)
            target = word(words, 6) + row * word(words, 7)
            sizes = word(words, 2), word(words, 3), word(words, 4), word(words, 5)
            write_ready(way, source, sizes, target)

    return address_of(make_ready)


def write_ready(way: Readying, source: int, sizes: Sizes, target: int) -> None:
    """Make a row ready. `sizes`: channels, those of a group, padded ones, bytes of a channel."""
    raise NotImplementedError("exists in Numba functions only")


@overload(write_ready)
def _write_ready(
    way: Readying,
    source: int,  # noqa: ARG001
    sizes: Sizes,  # noqa: ARG001
    target: int,  # noqa: ARG001
) -> Callable[..., None]:
    """Choose the code; Numba hands in types, but wants the signature repeated to the letter."""
    kind: Any = way
    return {"code": _code, "narrow": _narrow, "pad": _pad}[kind.value.name]


def _code(way: Readying, source: int, sizes: Sizes, target: int) -> None:  # noqa: ARG001
    """Write the codes of a row, with scale and sum behind each group (see pack_kernel)."""
    channels, group, padded, channel_bytes = sizes
    code_bytes = padded * channel_bytes
    for start in range(0, channels, group):
        count = min(group, channels - start)
        numbers = floats_at(source + start * 4, count)
        scale = _row_scale(numbers_at(source + start * 4, count, np.uint32))
        if channel_bytes == 2:
            narrow = np.empty(padded, np.int8)
            total = _write_row_codes(numbers, scale, narrow)
            _widen(narrow, numbers_at(target, padded, np.int16))
        else:
            total = _write_row_codes(numbers, scale, numbers_at(target, padded, np.int8))
        floats_at(target + code_bytes, 1)[0] = scale
        numbers_at(target + code_bytes + 4, 1, np.int32)[0] = total
        target += code_bytes + ROW_PARAMETER_BYTES


def _narrow(way: Readying, source: int, sizes: Sizes, target: int) -> None:  # noqa: ARG001
    """Write a row rounded to bfloat16, filled up with zeros."""
    channels, _, padded, _ = sizes
    for i in range(channels):
        write(BFLOAT16, target, i, read(FLOAT32, source, i))
    for i in range(channels, padded):
        write(BFLOAT16, target, i, np.float32(0))


def _pad(way: Readying, source: int, sizes: Sizes, target: int) -> None:  # noqa: ARG001
    """Write a row filled up with zeros."""
    channels, _, padded, _ = sizes
    for i in range(channels):
        write(FLOAT32, target, i, read(FLOAT32, source, i))
    for i in range(channels, padded):
        write(FLOAT32, target, i, np.float32(0))


_CODE, _NARROW, _PAD = Readying("code"), Readying("narrow"), Readying("pad")


# ---- the product ---------------------------------------------------------------------------------


def product_kernel(one_row: Recipe, many_rows: Recipe) -> Kernel:
    """Return the kernel that multiplies by these recipes. A task: a panel by up to 192 rows."""

    def product(words: int, rows: int, task: int) -> None:
        parts = (rows + ROWS_PER_TASK - 1) // ROWS_PER_TASK
        panel, start = task // parts, task % parts * ROWS_PER_TASK
        if rows == 1:
            _panel(one_row, words, rows, panel, start)
        else:
            _panel(many_rows, words, rows, panel, start)

    return product


@in_kernel
def _panel(recipe: Recipe, words: int, num_rows: int, panel: int, start: int) -> None:
    """Multiply rows [start, start + ROWS_PER_TASK) by the weights of a panel."""
    tile = np.empty((recipe.rows, PANEL), np.float32)
    weights = word(words, 0) + panel * word(words, 1)
    groups = word(words, 2)
    x, stride = word(words, 3), word(words, 4)
    sizes = (groups, word(words, 1) // groups, word(words, 5))
    for first in range(start, min(num_rows, start + ROWS_PER_TASK), recipe.rows):
        address, last = x + first * stride, num_rows - 1 - first
        fill_tile(recipe, weights, address, stride, last, sizes, tile.ctypes.data)
        for row in range(min(recipe.rows, num_rows - first)):
            _finish(words, first + row, panel, tile[row])


@in_kernel
def _finish(words: int, row: int, panel: int, sums: Floats) -> None:
    """Write a panel's outputs of one row; `sums` is used up."""
    first = panel * PANEL
    width = min(PANEL, word(words, 8) - first)
    out = floats_at(word(words, 6) + row * word(words, 7) + 4 * first, width)
    if word(words, 9) != 0:
        bias = floats_at(word(words, 9) + 4 * first, width)
        for i in range(width):
            sums[i] += bias[i]
    if word(words, 10) == 0:
        for i in range(width):
            out[i] = sums[i]
    else:
        residual = floats_at(word(words, 10) + row * word(words, 11) + 4 * first, width)
        scale = real(words, 12)
        for i in range(width):
            out[i] = residual[i] + scale * sums[i]
