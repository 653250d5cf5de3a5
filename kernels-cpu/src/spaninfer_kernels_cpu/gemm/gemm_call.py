"""GEMM with packed weights as calls: all rows by one weight or, part by part, by several
(`gemm_calls`), a gated MLP's first two (`gated_gemm_calls`), and rows in order of their experts by
the weights of these (`grouped_gemm_call`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.isa_level import active_level
from spaninfer_kernels_cpu.codegen.kernel import Kernel
from spaninfer_kernels_cpu.codegen.memory import odd_lines
from spaninfer_kernels_cpu.elementwise.activations import ACTIVATIONS, SILU, Activation
from spaninfer_kernels_cpu.gemm.gemm_kernel import gemm_kernel
from spaninfer_kernels_cpu.gemm.micro_kernel import (
    MicroKernel,
    k_blocks,
    medium_tile,
    micro_kernels,
    rows_per_task,
    small_tile,
)
from spaninfer_kernels_cpu.gemm.prepare_activations import prepare_call, prepared_bytes
from spaninfer_kernels_cpu.quantisation.layout import PANEL
from spaninfer_kernels_cpu.quantisation.packed import Packed
from spaninfer_kernels_cpu.runtime.call import TOKENS, Call, Matrix
from spaninfer_kernels_cpu.runtime.cpu_count import usable_cpus
from spaninfer_kernels_cpu.runtime.numa import numa_nodes, shares

Floats = NDArray[np.float32]

_MOST_PANELS = 32  # of a piece: 0.1 ms of reading in a 0.5B model; threads give way between pieces


def gemm_scratch_bytes(weight: Packed, *, rounded: bool = False) -> int:
    """Return the bytes of scratch memory per row that `gemm_calls` wants; 0 if none."""
    return odd_lines(weight.count * prepared_bytes(weight.layout, rounded=rounded))


def gemm_calls(
    x: Matrix,
    weight: Packed,
    *,
    out: Matrix,
    scratch: int,
    bias: Floats | None = None,
    residual: Matrix | None = None,
    scale: float = 1.0,
    rounded: bool = False,
    count: int = TOKENS,
) -> list[Call]:
    """Return the calls that write x @ weight.T + bias to out, or residual + scale * that.

    Of N weights in one, number n multiplies part n of rows of N C numbers and writes part n of N O;
    these have neither bias nor residual. `scratch` has `gemm_scratch_bytes` per row; `rounded`: x may
    be rounded to bfloat16 where weights are that and the CPU multiplies both so; `count`: which of
    the step's counts is the number of rows. The caller keeps weight and bias[O] alive. `out` may be
    `residual`; neither may be `x`.
    """
    assert weight.count == 1 or (bias is None and residual is None)
    (_, many), layout = _recipes(weight, rounded), weight.layout
    into = k_blocks(layout, many)
    calls, x = _prepared(x, weight, scratch, rounded, count, into)
    panels = weight.count * layout.panels
    pieces = _pieces(panels, usable_cpus(), len(numa_nodes()))
    tokens_per_task = rows_per_task(layout, many, into)
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
        *(usable_cpus(), into, tokens_per_task),
    )
    kernel = _product(weight, rounded, SILU)
    return [*calls, Call(kernel, words, len(pieces) - 1, tokens_per_task, count)]


def can_gate(weight: Packed) -> bool:
    """Can `gated_gemm_calls` take it: no panel of both gates and factors, on one node?"""
    return weight.layout.outputs % (2 * PANEL) == 0 and len(numa_nodes()) == 1


def gated_gemm_calls(
    x: Matrix,
    weight: Packed,
    act: str,
    *,
    out: Matrix,
    scratch: int,
    rounded: bool = False,
    count: int = TOKENS,
) -> list[Call]:
    """Return the calls that write act(x @ gate.T) * (x @ up.T) to out; weight[2I C] is gate above
    up, and `can_gate`.

    Everything else is as in `gemm_calls`. A prompt's 2I numbers of a row, which nobody reads
    twice, never leave the caches so: 10 MB of 256 rows in a 0.5B model.
    """
    assert can_gate(weight)
    calls, x = _prepared(x, weight, scratch, rounded, count)
    half = weight.layout.panels // 2
    pieces = _pieces(half, usable_cpus(), 1)
    tokens_per_task = rows_per_task(weight.layout, _recipes(weight, rounded)[1])
    words = (
        *_weight_words(weight),
        *_row_words(x, weight, rounded),
        *(out.address, out.stride, 0, 0, 0, 0, 1.0),
        *_piece_words(pieces),
        half,
        *(usable_cpus(), 1, tokens_per_task),
    )
    kernel = _product(weight, rounded, ACTIVATIONS[act])
    return [*calls, Call(kernel, words, len(pieces) - 1, tokens_per_task, count)]


def grouped_gemm_call(
    x: Matrix, weight: Packed, *, out: Matrix, runs: int, rounded: bool = False, count: int
) -> Call:
    """Write the products of ready rows, run after run, each with the weight that the run names.

    `runs` is the address of SEGMENT_NUMBERS int32 for as many runs as `count` says; those without
    rows do nothing. Where `prepared_bytes` is 0, x are rows as they are.
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


def _prepared(
    x: Matrix, weight: Packed, scratch: int, rounded: bool, count: int, into: int = 1
) -> tuple[list[Call], Matrix]:
    """Return the calls that make rows ready in scratch memory, if any, and where rows are then.

    `into` so many stretches.
    """
    stride = gemm_scratch_bytes(weight, rounded=rounded)
    if not stride:
        return [], x
    ready, parts = Matrix(scratch, stride), weight.count * into
    layout = replace(weight.layout, channels=weight.layout.channels // into)
    call = prepare_call(x, layout, out=ready, parts=parts, rounded=rounded, count=count)
    return [call], ready


def _weight_words(weight: Packed) -> tuple[int, ...]:
    layout = weight.layout
    sizes = layout.panel_bytes, layout.groups, layout.panels, layout.outputs
    return weight.panels.ctypes.data, *sizes


def _row_words(x: Matrix, weight: Packed, rounded: bool) -> tuple[int, ...]:
    part_bytes = prepared_bytes(weight.layout, rounded=rounded) or weight.layout.channels * 4
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
    few = small_tile(one, many)
    return gemm_kernel(one, few, medium_tile(few), many, activation)


def _recipes(weight: Packed, rounded: bool) -> tuple[MicroKernel, MicroKernel]:
    return micro_kernels(weight.layout.format.kind, rounded=rounded, level=active_level())
