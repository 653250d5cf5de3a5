"""A whole expert layer: choice, gated MLPs of the chosen experts, and their weighted sum.

x[T C], w13[E 2I C] and w2[E C I] hold one 16-bit float type, contiguous, at multiples of 16 bytes;
C and I are multiples of 8. Rows of w13 are 8 of the gate, their 8 of up, the next 8 of the gate and
so on: gate[E I C] and up[E I C] side by side as [E I/8 2 8 C]. Few tokens read their experts'
weights row by row, more are sorted by expert and computed by grouped GEMMs. Nothing waits for the
GPU, what is launched depends on T alone, and the same arguments give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    ShapeError,
    allocator,
    check_aligned,
    check_dense,
    check_results,
    gpu_of,
    inspect_arrays,
    match,
    pointer_of,
    prepared_once,
    stream_handle,
    view_at,
)

from spaninfer_kernels_cuda.grouped_gemm import Gate
from spaninfer_kernels_cuda.moe import route
from spaninfer_kernels_cuda.moe.prepared import Addresses, PreparedMoe, prepare
from spaninfer_kernels_cuda.moe.route import RouteOptions
from spaninfer_kernels_cuda.moe.tuning import MoeShape

_ALIGNMENT = 16  # of arrays, in bytes


def moe(
    x: object,
    router_logits: object,
    w13: object,
    w2: object,
    options: RouteOptions,
    *,
    act: Gate = "silu",
    b13: object = None,
    b2: object = None,
    residual: object = None,
    correction: object = None,
    slots: object = None,
    out: object = None,
    stream: object = None,
) -> object:
    """Return the sum of share_e * (w2[e] (act(gate[e] x) * up[e] x)) over chosen experts, [T C].

    With `residual`[T C] that is added, before the sum is rounded.
    router_logits[T L] choose experts e_j and their shares by `options`; the others of E, the last
    ones, are shared by all tokens. `correction`[L] float32 is added to the scores that choose, and
    tokens with a negative number in `slots`[T] int32 are
    padding, of which nothing is computed but the residual. b13[E 2I], in the order of w13's rows,
    and b2[E C] are biases. Without `out`, the result is a new array. Raises ShapeError, DTypeError
    or DeviceError for arguments that do not fit.
    """
    at, specs = inspect_arrays(x, router_logits, w13, w2, b13, b2, residual, correction, slots, out)
    *layer, residual_at, correction_at, slots_at, to = at
    step, allocate = _checked(options, act, specs)
    handle = stream_handle(stream, x)
    ticket, workspace, *new = allocate(handle)
    if out is None:
        (out,) = new
        to = pointer_of(out)
    ticket_at = pointer_of(ticket)
    memory = to, pointer_of(workspace), ticket_at
    no_factors = 0, 0
    step.start_clear(handle, ticket_at)
    step.start(
        handle,
        Addresses._make((*layer, *memory, residual_at, correction_at, slots_at, *no_factors)),
    )
    return out


@prepared_once(1024)
def _checked(
    options: RouteOptions, act: Gate, specs: tuple[ArraySpec, ...]
) -> tuple[PreparedMoe, Callable[[int], tuple[Any, ...]]]:
    """Return the layer for arrays with these specs, and the allocator of memory and result."""
    spec, logits, w13, w2, b13, b2, residual, correction, slots, out = specs
    floats = {"x": view_at(spec), "w13": view_at(w13), "w2": view_at(w2)}
    scores = view_at(logits)
    tokens, channels, scored, experts, rows, inner = match(
        x=(floats["x"], "T C"),
        router_logits=(scores, "T L"),
        w13=(floats["w13"], "E N C"),
        w2=(floats["w2"], "E C I"),
    ).values()
    if scored + options.shared != experts:
        raise ShapeError(
            f"w13 has {experts} experts; router_logits choose among {scored}, and {options.shared} "
            "are shared"
        )
    if rows != 2 * inner:
        raise ShapeError(f"w13: an expert has {rows} rows; gate and up of w2's {inner} have twice")
    for name, each, axes in (
        ("b13", b13, f"{experts} {rows}"),
        ("b2", b2, f"{experts} {channels}"),
        ("residual", residual, f"{tokens} {channels}"),
    ):
        if each:
            floats[name] = view_at(each)
            match(**{name: (floats[name], axes)})
    dtype = floats["x"].dtype
    check_dense(dtype, **floats)
    check_dense(scores.dtype, router_logits=scores)
    check_aligned(_ALIGNMENT, **floats)
    gpu = gpu_of(
        **floats, router_logits=scores, **route.check_choice(correction, slots, tokens, scored)
    )
    step = prepare(
        MoeShape(tokens, options.choices, channels, inner),
        options,
        experts=experts,
        act=act,
        dtype=dtype,
        gpu=gpu,
        logits_dtype=scores.dtype,
    )
    result = ("out", (tokens, channels), dtype, _ALIGNMENT)
    check_results((out,), gpu, result)
    ticket = ("ticket", (route.TICKET_BYTES,), np.dtype(np.uint8), _ALIGNMENT)
    workspace = ("workspace", (step.workspace_bytes,), np.dtype(np.uint8), _ALIGNMENT)
    return step, allocator(spec, gpu, ticket, workspace, *(() if out else (result,)))
