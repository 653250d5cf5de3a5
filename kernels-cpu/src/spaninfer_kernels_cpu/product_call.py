"""Products with packed weights as calls: of all rows with one weight or, part by part, with several
(`product_calls`), those of a gated MLP (`gated_calls`), and of rows in order of their experts with
the weights of these (`run_call`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.activation_kernel import ACTIVATIONS, SILU, Activation
from spaninfer_kernels_cpu.call import ROWS, Call, Rows
from spaninfer_kernels_cpu.errors import ShapeError, check_vector, demand_size
from spaninfer_kernels_cpu.kernel import Kernel
from spaninfer_kernels_cpu.layout import PANEL
from spaninfer_kernels_cpu.memory import odd_lines
from spaninfer_kernels_cpu.nodes import shares, usable_nodes
from spaninfer_kernels_cpu.packed import Packed
from spaninfer_kernels_cpu.product_task import product_kernel
from spaninfer_kernels_cpu.ready_call import ready_bytes, ready_call
from spaninfer_kernels_cpu.recipe import (
    Recipe,
    few_rows,
    recipes,
    some_rows,
    stretches,
    task_rows,
)
from spaninfer_kernels_cpu.threads import usable_cpus
from spaninfer_kernels_cpu.tiers import chosen

Floats = NDArray[np.float32]

_MOST_PANELS = 32  # of a piece: 0.1 ms of reading in a 0.5B model; threads give way between pieces


def scratch_bytes(weight: Packed, *, rounded: bool = False) -> int:
    """Return the bytes of scratch memory per row that `product_calls` wants; 0 if none."""
    return odd_lines(weight.count * ready_bytes(weight.layout, rounded=rounded))


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
    count: int = ROWS,
) -> list[Call]:
    """Return the calls that write x @ weight.T + bias to out, or residual + scale * that.

    Of N weights in one, number n multiplies part n of rows of N C numbers and writes part n of N O;
    these have neither bias nor residual (KernelError). `scratch` has `scratch_bytes` per row;
    `rounded`: x may be rounded to bfloat16 where weights are that and the CPU multiplies both so;
    `count`: which of the step's counts is the number of rows. The caller keeps weight and bias[O]
    alive. `out` may be `residual`; neither may be `x`.
    """
    if bias is not None or residual is not None:
        demand_size("weights in one, with bias or residual", weight.count, 1, 1)
    if bias is not None:
        check_vector("bias", bias, weight.layout.outputs)
    (_, many), layout = _recipes(weight, rounded), weight.layout
    into = stretches(layout, many)
    calls, x = _made_ready(x, weight, scratch, rounded, count, into)
    panels = weight.count * layout.panels
    pieces = _pieces(panels, usable_cpus(), len(usable_nodes()))
    rows_per_task = task_rows(layout, many, into)
    words = (
        *_weight_words(weight),
        *_row_words(x, weight, rounded),
        *(out.address, out.stride),
        0 if bias is None else bias.ctypes.data,
        *((0, 0) if residual is None else (residual.address, residual.stride)),
        0,
        1.0 if residual is None else float(scale),
        *_piece_words(pieces),
        0,
        *(usable_cpus(), into, rows_per_task),
    )
    kernel = _product(weight, rounded, SILU)
    return [*calls, Call(kernel, words, len(pieces) - 1, rows_per_task, count)]


def can_gate(weight: Packed) -> bool:
    """Can `gated_calls` take this weight: no panel with both gates and factors, on one node?"""
    return weight.layout.outputs % (2 * PANEL) == 0 and len(usable_nodes()) == 1


def gated_calls(
    x: Rows,
    weight: Packed,
    act: str,
    *,
    out: Rows,
    scratch: int,
    rounded: bool = False,
    count: int = ROWS,
) -> list[Call]:
    """Return the calls that write act(x @ gate.T) * (x @ up.T) to out; weight[2I C] is gate above
    up, and `can_gate`.

    Everything else is as in `product_calls`. A prompt's 2I numbers of a row, which nobody reads
    twice, never leave the caches so: 10 MB of 256 rows in a 0.5B model.
    """
    if not can_gate(weight):
        raise ShapeError(f"{weight.layout.outputs} outputs cannot be gated panel by panel")
    calls, x = _made_ready(x, weight, scratch, rounded, count)
    half = weight.layout.panels // 2
    pieces = _pieces(half, usable_cpus(), 1)
    rows_per_task = task_rows(weight.layout, _recipes(weight, rounded)[1])
    words = (
        *_weight_words(weight),
        *_row_words(x, weight, rounded),
        *(out.address, out.stride, 0, 0, 0, 0, 1.0),
        *_piece_words(pieces),
        half,
        *(usable_cpus(), 1, rows_per_task),
    )
    kernel = _product(weight, rounded, ACTIVATIONS[act])
    return [*calls, Call(kernel, words, len(pieces) - 1, rows_per_task, count)]


def run_call(
    x: Rows, weight: Packed, *, out: Rows, runs: int, rounded: bool = False, count: int
) -> Call:
    """Write the products of ready rows, run after run, each with the weight that the run names.

    `runs` is the address of RUN_NUMBERS int32 for as many runs as `count` says; those without rows
    do nothing. Where `ready_bytes` is 0, x are rows as they are.
    """
    pieces = _pieces(weight.layout.panels, usable_cpus(), 1)
    words = (
        *_weight_words(weight),
        *_row_words(x, weight, rounded),
        *(out.address, out.stride, 0, 0, 0, runs, 1.0),
        *_piece_words(pieces),
        0,
        *(usable_cpus(), 1, 1),
    )
    return Call(_product(weight, rounded, SILU), words, len(pieces) - 1, 1, count)


def _made_ready(
    x: Rows, weight: Packed, scratch: int, rounded: bool, count: int, into: int = 1
) -> tuple[list[Call], Rows]:
    """Return the calls that make rows ready in scratch memory, if any, and where rows are then.

    `into` so many stretches.
    """
    stride = scratch_bytes(weight, rounded=rounded)
    if not stride:
        return [], x
    ready, parts = Rows(scratch, stride), weight.count * into
    layout = replace(weight.layout, channels=weight.layout.channels // into)
    call = ready_call(x, layout, out=ready, parts=parts, rounded=rounded, count=count)
    return [call], ready


def _weight_words(weight: Packed) -> tuple[int, ...]:
    layout = weight.layout
    sizes = layout.panel_bytes, layout.groups, layout.panels, layout.outputs
    return weight.panels.ctypes.data, *sizes


def _row_words(x: Rows, weight: Packed, rounded: bool) -> tuple[int, ...]:
    part_bytes = ready_bytes(weight.layout, rounded=rounded) or weight.layout.channels * 4
    return x.address, x.stride, part_bytes


def _piece_words(pieces: NDArray[np.int64]) -> tuple[int, int]:
    return pieces.ctypes.data, len(pieces) - 1


@cache
def _pieces(panels: int, threads: int, nodes: int) -> NDArray[np.int64]:
    """Return where the pieces of so many panels begin, and the end; it is kept for good.

    A piece is one stream from memory: each new one waits for it, 0.3 µs of the 2 that a panel of a
    small product takes. The first are large; the last small, so that threads end together. Each
    node's share (`nodes.place`) has as many: some of the last node's may be without panels.
    """
    (_, share), *_ = shares(panels, nodes)
    starts = [0]
    while starts[-1] < share:
        left = share - starts[-1]
        starts.append(starts[-1] + min(max(1, left // (2 * threads // nodes)), _MOST_PANELS))
    ends = [node * share + start for node in range(nodes) for start in starts[:-1]]
    return np.minimum([*ends, panels], panels)


def _product(weight: Packed, rounded: bool, activation: Activation) -> Kernel:
    one, many = _recipes(weight, rounded)
    few = few_rows(one, many)
    return product_kernel(one, few, some_rows(few), many, activation)


def _recipes(weight: Packed, rounded: bool) -> tuple[Recipe, Recipe]:
    return recipes(weight.layout.format.kind, rounded=rounded, tier=chosen())
