"""Products of activations with packed weights: what callers see.

Weights that are numbers multiply float32 activations, or with bfloat16 ones, bfloat16 activations.
Weights that are codes multiply activations that are made codes too: int8, symmetric, one scale per
row and group of channels, scale = largest size / 127.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu import pack_kernel, products_kernel
from spaninfer_kernels_cpu.compiled import make_ready
from spaninfer_kernels_cpu.errors import DTypeError, ShapeError, demand_size
from spaninfer_kernels_cpu.layout import Format, Layout
from spaninfer_kernels_cpu.memory import aligned, odd_lines
from spaninfer_kernels_cpu.packed import Packed
from spaninfer_kernels_cpu.recipe import Recipe, recipes, row_bytes
from spaninfer_kernels_cpu.threads import usable_cpus
from spaninfer_kernels_cpu.tiers import chosen
from spaninfer_kernels_cpu.workers import share

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

SERIAL_BELOW = 4_000_000  # bytes of weights times tiles of rows, some 100 µs: a helper wakes later

_NO_BIAS = np.empty(0, np.float32)


def linear(
    x: NDArray[np.generic], weight: Packed, *, out: Floats, bias: Floats | None = None
) -> None:
    """Write x[T C] @ weight[O C].T + bias[O] into out[T O] (float32).

    x is float32; with bfloat16 weights it may be bfloat16. Columns of `out` must be contiguous.
    Works on every usable CPU where that pays.
    """
    demand_size("weights in one", weight.count, 1, 1)
    _check(x, weight.layout, out, bias)
    if not len(x):
        return
    rounded = x.dtype == ml_dtypes.bfloat16
    one, many = recipes(weight.layout.format.kind, rounded=rounded, tier=chosen())
    workers = _num_workers(weight, len(x))
    rows = rows_for(x, weight.layout, one, workers)
    arguments = (weight.panels, rows, weight.layout.groups, _NO_BIAS if bias is None else bias, out)
    share(_kernel(one, many), arguments, workers)


def make_products_ready(format: Format) -> None:
    """Compile what `linear` needs for weights of a format, or load it from the cache on disk."""
    for rounded in {False, format.kind == "bfloat16"}:
        _kernel(*recipes(format.kind, rounded=rounded, tier=chosen()))
    if format.has_codes:
        _row_coder()


@cache
def _kernel(one_row: Recipe, many_rows: Recipe) -> Callable[..., None]:
    work = products_kernel.kernel(one_row, many_rows)
    make_ready(work, products_kernel.SIGNATURE)
    return work


@cache
def _row_coder() -> Callable[..., None]:
    make_ready(pack_kernel.row_codes, pack_kernel.ROWS_SIGNATURE)
    return pack_kernel.row_codes


def _num_workers(weight: Packed, num_rows: int) -> int:
    """Return how many threads share the work: one where it is little."""
    return 1 if weight.panels.nbytes * -(-num_rows // 8) < SERIAL_BELOW else usable_cpus()


def rows_for(x: NDArray[np.generic], layout: Layout, recipe: Recipe, workers: int) -> Bytes:
    """Return activations[T C] as the bytes that kernels of a recipe read, [T bytes]."""
    padded = layout.padded_channels
    rows = aligned((len(x), odd_lines(row_bytes(layout, recipe))), np.uint8)
    if layout.format.has_codes:
        wide = recipe.channel_bytes == 2
        arguments = (x, layout.group_channels, padded, wide, recipe.centre, rows)
        share(_row_coder(), arguments, workers if len(x) > pack_kernel.ROWS_PER_TASK else 1)
        return rows
    kind = np.float32 if recipe.way == "fma" else ml_dtypes.bfloat16
    numbers = rows.view(kind)
    numbers[:] = 0
    first = numbers[:, : layout.channels]
    first[:] = x
    if recipe.parts > 1:
        rounded = first.astype(np.float32)
        rest = numbers[:, padded : padded + layout.channels]
        rest[:] = np.subtract(x, rounded, out=np.zeros_like(rounded), where=np.isfinite(rounded))
    return rows


def _check(x: NDArray[np.generic], layout: Layout, out: Floats, bias: Floats | None) -> None:
    """Raise unless the arguments have the types and shapes that `linear` describes."""
    allowed = [np.dtype(np.float32)]
    if layout.format.kind == "bfloat16":
        allowed.append(np.dtype(ml_dtypes.bfloat16))
    if x.dtype not in allowed:
        names = " or ".join(map(str, allowed))
        raise DTypeError(f"x holds {x.dtype}; {layout.format.kind} weights take {names}")
    for name, array in (("out", out), ("bias", bias)):
        if array is not None and array.dtype != np.float32:
            raise DTypeError(f"{name} holds {array.dtype}; the kernel takes float32")
    if x.ndim != 2 or x.shape[1] != layout.channels or not x.flags.c_contiguous:
        raise ShapeError(
            f"x: expected contiguous (T C) with C = {layout.channels} of the weight, got shape "
            f"{x.shape} with strides {x.strides}"
        )
    expected = (len(x), layout.outputs)
    if out.shape != expected or (out.size and out.strides[1] != out.itemsize):
        raise ShapeError(
            f"out: expected shape {expected} with contiguous columns, got {out.shape} with strides "
            f"{out.strides}"
        )
    if not out.flags.writeable:
        raise ShapeError("out is read-only; give an array that can be written")
    if bias is not None and (bias.shape != expected[1:] or not bias.flags.c_contiguous):
        raise ShapeError(f"bias: expected contiguous ({layout.outputs},), got shape {bias.shape}")
