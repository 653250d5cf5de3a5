"""A whole expert layer: choice, gated MLPs of the chosen experts, and their weighted sum.

x[T C], w13[E 2I C] and w2[E C I] hold one 16-bit float type, contiguous, at multiples of 16 bytes;
C and I are multiples of 8. Rows of w13 are 8 of the gate, their 8 of up, the next 8 of the gate and
so on: gate[E I C] and up[E I C] side by side as [E I/8 2 8 C]. Few tokens read their experts'
weights row by row, more are sorted by expert and computed by grouped GEMMs. Nothing waits for the
GPU, what is launched depends on T alone, and the same arguments give the same bits.
"""

from __future__ import annotations

import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Operator,
    Result,
    ShapeError,
    Step,
    check_aligned,
    check_dense,
    gpu_of,
    match,
    new_results,
    view_at,
)

from spaninfer_kernels_cuda.grouped_gemm import Gate
from spaninfer_kernels_cuda.moe import combine, route
from spaninfer_kernels_cuda.moe.prepared import prepare
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
    arrays = x, router_logits, w13, w2, b13, b2, residual, correction, slots, out
    new = _moe.start((options, act), arrays, stream=stream)
    return new[0] if out is None else out


def _prepare_call(asked: tuple[RouteOptions, Gate], given: dict[str, ArraySpec]) -> Step:
    """Return the layer for arrays with these specs."""
    options, act = asked
    floats = {name: view_at(given[name]) for name in ("x", "w13", "w2")}
    scores = view_at(given["logits"])
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
    for name, axes in (
        ("b13", f"{experts} {rows}"),
        ("b2", f"{experts} {channels}"),
        ("residual", f"{tokens} {channels}"),
    ):
        if name in given:
            floats[name] = view_at(given[name])
            match(**{name: (floats[name], axes)})
    dtype = floats["x"].dtype
    check_dense(dtype, **floats)
    check_dense(scores.dtype, router_logits=scores)
    check_aligned(_ALIGNMENT, **floats)
    choice = route.check_choice(given, tokens, scored)
    gpu = gpu_of(**floats, router_logits=scores, **choice)
    layer = prepare(
        MoeShape(tokens, options.choices, channels, inner),
        options,
        experts=experts,
        act=act,
        dtype=dtype,
        gpu=gpu,
        logits_dtype=scores.dtype,
    )
    new = new_results(given, gpu, ("out", (tokens, channels), dtype, _ALIGNMENT))
    workspace: Result = ("workspace", (layer.workspace_bytes,), np.uint8, _ALIGNMENT)
    without = combine.NO_NORM if layer.draws else {"ticket": 0, **combine.NO_NORM}
    return Step(gpu, layer.by_name, new, (workspace,), without, layer.draws)


_moe = Operator("x logits w13 w2 b13 b2 residual correction slots out", _prepare_call)
