"""Fusions of expert layers: the choice, the chosen experts and their sum, by kernels of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from spaninfer_kernel_launch import ShapeError
from spaninfer_kernels_cuda import moe
from spaninfer_kernels_cuda.moe import MAX_CHOICES, RouteShape, check_route, check_shape
from spaninfer_kernels_cuda.quantized_gemm import QuantizedFormat
from torch import Tensor

from spaninfer_engine.backends.cuda.attention.plan import Plan
from spaninfer_engine.backends.cuda.fusions.attention import Backend
from spaninfer_engine.backends.cuda.kernels.experts import ExpertCall, ExpertLayer
from spaninfer_engine.backends.cuda.weights.coded_experts import CodedExperts
from spaninfer_engine.backends.cuda.weights.experts import (
    DOWN,
    DOWN_IO,
    DOWN_SHARED,
    GATE_UP,
    GATE_UP_IO,
    GATE_UP_SHARED,
)
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.ops.fuse import single, use_of
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.step import Step
from spaninfer_engine.ops.table import Claim, Kernel, Pack

_ROUTED = ("l = router x", "i w = route l", "y = experts x i w")
_AND_SHARED = (
    *_ROUTED,
    *("g = linear x", "u = linear x", "h = gate g u", "d = linear h", "z = add y d"),
)
_SCALED = (
    *("l = router x", "i s = route l", "t = scale_rows x s"),
    *("j w = route l", "y = experts t j w"),
)


def claims_of_experts(ops: Backend) -> tuple[Claim, ...]:
    """Return the claims of expert layers: with the residual sum and the norm of it, without, both
    also with an MLP that all tokens share, and with inputs that are scaled by their shares (Llama
    4).
    """

    def build(taken: Sequence[Operation], pack: Pack) -> Kernel:
        return _routed(taken, ops, pack)

    def build_with_norm(taken: Sequence[Operation], pack: Pack) -> Kernel:
        run, normed = _routed(taken[:-2], ops, pack), taken[-1]
        weight = pack([use_of(normed, "weight")], ops.layout("rms_norm", "weight"))
        eps, offset = normed.number("eps"), float(bool(normed.constant("plus_one")))

        def kernel(step: Step[Tensor], x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
            residual = residual.contiguous()
            out = torch.empty_like(residual)
            return run(step, x, residual, moe.Norm(weight, out, eps, offset)), out

        return kernel

    def build_scaled(taken: Sequence[Operation], pack: Pack) -> Kernel:
        score, share, scale = (single(each, ops, pack) for each in taken[:3])
        run = _experts(taken[3], taken[4], ops, pack)

        def kernel(step: Step[Tensor], x: Tensor) -> Tensor:
            logits = score(step, x)
            return run(step, scale(step, x, share(step, logits)[1]), logits)

        return kernel

    def joins(taken: Sequence[Operation]) -> bool:
        return ops.joins_shared_experts and _can_join(taken)

    return (
        Claim(
            "experts_add_rms_norm",
            (*_AND_SHARED, "s = add r z", "n = rms_norm s"),
            "s n",
            build_with_norm,
            lambda taken: taken[-2].constant("scale") == 1.0 and joins(taken[:-2]),
            overwrites="r",
        ),
        Claim("routed_experts", _AND_SHARED, "z", build, joins),
        Claim(
            "experts_add_rms_norm",
            (*_ROUTED, "s = add r y", "n = rms_norm s"),
            "s n",
            build_with_norm,
            lambda taken: taken[3].constant("scale") == 1.0,
            overwrites="r",
        ),
        Claim("routed_experts", _ROUTED, "y", build),
        Claim("routed_experts", _SCALED, "y", build_scaled),
    )


def _routed(taken: Sequence[Operation], ops: Backend, pack: Pack) -> Callable[..., Tensor]:
    """Return the call of a router, its choice and the experts, perhaps with an MLP that all tokens
    share: of a step and x[T C], and perhaps a residual that becomes the sum, and its norm.
    """
    router, route, experts, *shared = taken
    score, run = single(router, ops, pack), _experts(route, experts, ops, pack, shared)

    def call(
        step: Step[Tensor],
        x: Tensor,
        residual: Tensor | None = None,
        norm: moe.Norm | None = None,
    ) -> Tensor:
        return run(step, x, score(step, x), residual, norm)

    return call


def _can_join(taken: Sequence[Operation]) -> bool:
    """Return True if an MLP that all tokens share is as wide as some experts, and else like one."""
    _, route, experts, *linears, added = taken
    gate, up, act, down = linears
    uses = {use.argument: use.shape for use in experts.weights}
    if experts.constant("layout") != "oi" or {"gate_up_bias", "down_bias"} & uses.keys():
        return False
    inner, wide = uses["down"][2], use_of(down, "weight").shape[1]
    is_alike = act.constant("act") == experts.constant("act") and added.constant("scale") == 1.0
    is_plain = all(
        len(each.weights) == 1 and each.weights[0].view is None for each in (gate, up, down)
    ) and all(use.view is None for use in experts.weights)
    choices = route.routing().top_k + wide // inner
    return is_alike and is_plain and wide % inner == 0 and choices <= MAX_CHOICES


def _experts(
    route: Operation,
    experts: Operation,
    ops: Backend,
    pack: Pack,
    shared: Sequence[Operation] = (),
) -> Callable[..., Tensor]:
    """Return the call of a choice and its experts: of a step, x[T C], logits[T E], and what
    `_routed` takes besides. Rows that pad a captured step choose no expert.
    """
    layer = _layer_of(route, experts, shared)
    (weights, formats), correction = _weights_of(experts, pack, shared), None
    layer = replace(layer, formats=formats)
    if route.weights:
        correction = pack([use_of(route, "correction")], ops.layout("route", "correction"))
    kernels = ops.kernels

    def run(
        step: Step[Tensor],
        x: Tensor,
        logits: Tensor,
        residual: Tensor | None = None,
        norm: moe.Norm | None = None,
    ) -> Tensor:
        plan: Plan = step.attention
        slots = plan.slices.slots_of(len(x))
        call = ExpertCall(weights, correction, residual, norm, slots)
        return kernels.experts.run(layer, x, logits, call)

    return run


def _layer_of(
    route: Operation, experts: Operation, shared: Sequence[Operation] = ()
) -> ExpertLayer:
    """Return the sizes and the rule of a layer. Raises ConfigError where there is no kernel."""
    routing = route.routing()
    down = use_of(experts, "down").shape
    swaps = experts.constant("layout") == "io"
    num_experts, channels, inner = (down[0], down[2], down[1]) if swaps else down
    more = use_of(shared[0], "weight").shape[0] // inner if shared else 0
    rule = moe.RouteOptions(
        top_k=routing.top_k,
        score=routing.kind,
        normalise=routing.normalise,
        scale=routing.scale,
        groups=routing.groups,
        group_topk=routing.group_topk,
        group_score=routing.group_score,
        shared=more,
    )
    act: Any = experts.constant("act")
    layer = ExpertLayer(num_experts + more, channels, inner, act, rule)
    try:
        options = layer.rule
        sizes = num_experts, options.top_k, options.groups, options.group_topk
        check_route(RouteShape(1, *sizes, shared=more))
        check_shape(layer.shape(1))
    except ShapeError as unsupported:
        raise ConfigError(
            f"backend cuda has no kernels for this model's experts: {unsupported}; "
            "choose --backend torch"
        ) from unsupported
    return layer


def _weights_of(
    experts: Operation, pack: Pack, shared: Sequence[Operation] = ()
) -> tuple[moe.Experts, moe.Formats | None]:
    """Return the weights, and their formats where some are codes."""
    uses = {use.argument: use for use in experts.weights}
    swaps = experts.constant("layout") == "io"
    first = [uses[name] for name in ("gate", "up") if name in uses] or [uses["gate_up"]]
    if shared:
        gate, up, _, down, _ = shared
        first += [use_of(each, "weight") for each in (gate, up)]
        w13 = pack(first, GATE_UP_SHARED)
        return moe.Experts(w13, pack([uses["down"], use_of(down, "weight")], DOWN_SHARED)), None
    w13, f13, of_up = _parts(pack(first, GATE_UP_IO if swaps else GATE_UP))
    w2, f2, of_down = _parts(pack([uses["down"]], DOWN_IO if swaps else DOWN))
    b13 = pack([uses["gate_up_bias"]], GATE_UP) if "gate_up_bias" in uses else None
    b2 = pack([uses["down_bias"]], "plain") if "down_bias" in uses else None
    has_codes = of_up is not None or of_down is not None
    formats = moe.Formats(of_up, of_down) if has_codes else None
    return moe.Experts(w13, w2, b13, b2, f13, f2), formats


def _parts(
    weight: Tensor | CodedExperts,
) -> tuple[Tensor, Tensor | None, QuantizedFormat | None]:
    """Return the numbers of a weight, or its records, their factors and format."""
    if isinstance(weight, CodedExperts):
        return weight.records, weight.factors, weight.format
    return weight, None, None
