"""Gated MLPs of experts, over the tokens that chose them: what callers see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from spaninfer_kernels_cpu import experts_kernel
from spaninfer_kernels_cpu.compiled import make_ready
from spaninfer_kernels_cpu.elements import FLOAT32
from spaninfer_kernels_cpu.errors import DTypeError, ShapeError
from spaninfer_kernels_cpu.layout import PANEL, Layout
from spaninfer_kernels_cpu.packed import Packed
from spaninfer_kernels_cpu.products import rows_for
from spaninfer_kernels_cpu.recipe import Recipe, recipes
from spaninfer_kernels_cpu.rows_kernel import ACTIVATIONS, Activation, gate
from spaninfer_kernels_cpu.threads import usable_cpus
from spaninfer_kernels_cpu.tiers import chosen
from spaninfer_kernels_cpu.vectors import check_intrinsics
from spaninfer_kernels_cpu.workers import COUNTER, Counter, next_task, share

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Addresses = NDArray[np.int64]


def experts(
    x: Floats,
    gate_up: Sequence[Packed],
    down: Sequence[Packed],
    ids: Ints,
    weights: Floats,
    act: str,
    *,
    out: Floats,
) -> None:
    """Write into out[T C] the MLPs that ids[T k] name, of x[T C], summed with weights[T k].

    The MLP of an expert is down (act(gate x) * up x); gate_up holds, per expert, the rows of gate
    and below them those of up [2I C], down is [C I] each. All experts have one format. ids are
    int32 below the number of experts, trusted; the rest is float32. Works on every usable CPU.
    """
    _check(x, gate_up, down, ids, weights, act, out)
    if not ids.size:
        return
    workers = usable_cpus()
    bounds, rank = np.empty(len(down) + 1, np.int32), np.empty(ids.size, np.int32)
    first, second = gate_up[0].layout, down[0].layout
    one, many = recipes(first.format.kind, rounded=False, tier=chosen())
    rows = rows_for(x, first, one, workers)
    ordered = np.empty((ids.size, rows.shape[1]), np.uint8)
    share(_orderer(), (ids, bounds, rank, rows, ordered), 1)
    multiply = _multiplier(many)
    both = np.empty((ids.size, first.outputs), np.float32)
    share(multiply, (_addresses(gate_up), *_sizes(first), bounds, ordered, both), workers)
    inner = np.empty((ids.size, second.channels), np.float32)
    share(_gater(ACTIVATIONS[act]), (both, inner), workers)
    rows = rows_for(inner, second, one, workers)
    results = np.empty((ids.size, second.outputs), np.float32)
    share(multiply, (_addresses(down), *_sizes(second), bounds, rows, results), workers)
    share(_combiner(), (rank, weights, results, out), workers)


def _addresses(weights: Sequence[Packed]) -> Addresses:
    return np.array([weight.panels.ctypes.data for weight in weights], np.int64)


def _sizes(layout: Layout) -> tuple[int, int]:
    return layout.panel_bytes, layout.groups


_IDS = types.Array(types.int32, 2, "C", readonly=True)
_INTS = types.Array(types.int32, 1, "C")
_BYTES = types.Array(types.uint8, 2, "C")
_ROWS = types.Array(types.float32, 2, "C")
_NUMBERS = types.Array(types.float32, 2, "C", readonly=True)


@cache
def _orderer() -> Callable[..., None]:
    make_ready(_order, (COUNTER, _IDS, _INTS, _INTS, _BYTES, _BYTES))
    return _order


@njit(nogil=True, cache=True, error_model="numpy")
def _order(
    counter: Counter, ids: Ints, bounds: Ints, rank: Ints, rows: Bytes, ordered: Bytes
) -> None:
    if next_task(counter) > 0:
        return
    experts_kernel.order_by_expert(ids.ctypes.data, ids.size, bounds, rank)
    width = rows.shape[1]
    for place in range(ids.size):
        experts_kernel.gather(
            place,
            ids.shape[1],
            rank.ctypes.data,
            rows.ctypes.data,
            width,
            ordered.ctypes.data,
        )


@cache
def _multiplier(recipe: Recipe) -> Callable[..., None]:
    check_intrinsics()
    addresses = types.Array(types.int64, 1, "C")

    @njit(nogil=True, cache=True, error_model="numpy")
    def multiply(
        counter: Counter,
        weights: Addresses,
        panel_bytes: int,
        groups: int,
        bounds: Ints,
        rows: Bytes,
        out: Floats,
    ) -> None:
        """Do panels of experts that `counter` gives to this thread, until none is left."""
        panels = (out.shape[1] + PANEL - 1) // PANEL
        tile = np.empty((recipe.rows, PANEL), np.float32)
        task = next_task(counter)
        while task < len(weights) * panels:
            experts_kernel.expert_task(
                recipe,
                task // panels,
                task % panels,
                weights.ctypes.data,
                panel_bytes,
                groups,
                bounds.ctypes.data,
                rows.ctypes.data,
                rows.shape[1],
                out.ctypes.data,
                out.shape[1],
                tile.ctypes.data,
            )
            task = next_task(counter)

    sizes = (types.int64, types.int64)
    make_ready(multiply, (COUNTER, addresses, *sizes, _INTS, _BYTES, _ROWS))
    return multiply


@cache
def _gater(activation: Activation) -> Callable[..., None]:
    @njit(nogil=True, cache=True, error_model="numpy")
    def run(counter: Counter, both: Floats, inner: Floats) -> None:
        row = next_task(counter)
        while row < len(inner):
            source, out = both[row].ctypes.data, inner[row].ctypes.data
            gate(FLOAT32, activation, 0, 1, source, out, 1, inner.shape[1])
            row = next_task(counter)

    make_ready(run, (COUNTER, _ROWS, _ROWS))
    return run


@cache
def _combiner() -> Callable[..., None]:
    make_ready(_combine, (COUNTER, _INTS, _NUMBERS, _ROWS, _ROWS))
    return _combine


@njit(nogil=True, cache=True, error_model="numpy")
def _combine(counter: Counter, rank: Ints, weights: Floats, results: Floats, out: Floats) -> None:
    sources, channels = results.ctypes.data, out.shape[1]
    token = next_task(counter)
    while token < len(out):
        experts_kernel.combine(
            token,
            weights.shape[1],
            rank.ctypes.data,
            weights.ctypes.data,
            sources,
            channels,
            out.ctypes.data,
        )
        token = next_task(counter)


def _check(
    x: Floats,
    gate_up: Sequence[Packed],
    down: Sequence[Packed],
    ids: Ints,
    weights: Floats,
    act: str,
    out: Floats,
) -> None:
    """Raise unless the arguments have the types and shapes that `experts` describes."""
    if act not in ACTIVATIONS:
        raise ShapeError(f"act is {act!r}; allowed are {', '.join(ACTIVATIONS)}")
    for name, array, dtype in (("x", x, "f4"), ("ids", ids, "i4"), ("weights", weights, "f4")):
        if array.dtype != np.dtype(dtype):
            raise DTypeError(f"{name} holds {array.dtype}; the kernel takes {np.dtype(dtype)}")
        if array.ndim != 2 or not array.flags.c_contiguous or len(array) != len(x):
            raise ShapeError(
                f"{name}: expected contiguous axes (T C) or (T k) with T = {len(x)} rows of x, got "
                f"shape {array.shape}"
            )
    inner, channels = down[0].layout.channels, x.shape[1]
    first, second = (
        Layout(down[0].layout.format, *shape)
        for shape in ((2 * inner, channels), (channels, inner))
    )
    for name, packed, layout in (("gate_up", gate_up, first), ("down", down, second)):
        if len(packed) != len(down) or any(one.layout != layout for one in packed):
            raise ShapeError(
                f"{name}: expected {len(down)} weights [{layout.outputs} {layout.channels}] packed "
                f"as {layout.format}"
            )
    if ids.shape != weights.shape or out.shape != x.shape or not out.flags.c_contiguous:
        raise ShapeError(
            f"ids {ids.shape} and weights {weights.shape}, or x {x.shape} and contiguous out "
            f"{out.shape}, differ"
        )
