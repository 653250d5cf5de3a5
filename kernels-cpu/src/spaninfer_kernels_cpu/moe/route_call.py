"""The choice of experts as a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.arguments import Arguments, Float32
from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.elements import larger, smaller
from spaninfer_kernels_cpu.errors import ShapeError, check_vector, demand_size
from spaninfer_kernels_cpu.moe.route_kernel import RouteScratch, Routing, route
from spaninfer_kernels_cpu.runtime.call import (
    MAX_SIZE,
    NUMBERS_PER_TASK,
    TOKENS,
    Call,
    Matrix,
    address_or_zero,
    row_at,
    tokens_per_task,
)

Floats = NDArray[np.float32]

_PASSES = 8  # over the scores of a row, about


@dataclass(frozen=True, slots=True)
class Routes(Arguments):
    """Addresses of the experts of every token, ids[T k] (int32), and weights[T k] (float32)."""

    ids: int
    weights: int


@dataclass(frozen=True, slots=True)
class _RoutingArguments(Arguments):
    """`route_kernel.Routing`, in the arguments of a call."""

    sigmoid: bool
    normalise: bool
    scale: Float32
    groups: int
    group_topk: int
    two_best: bool
    correction: int


@dataclass(frozen=True, slots=True)
class _RouteArguments(Arguments):
    logits: Matrix
    experts: int
    top_k: int
    routing: _RoutingArguments
    out: Routes


def route_call(
    logits: Matrix,
    *,
    experts: int,
    scores: Mapping[str, Any],
    correction: Floats | None = None,
    out: Routes,
    count: int = TOKENS,
) -> Call:
    """Write the experts that logits[T E] choose, and their weights, best first.

    `scores` are the keywords of spaninfer_op_reference.route, all but `correction`. The caller
    keeps correction[E] alive. Raises KernelError where fewer than `top_k` experts could be chosen
    from, and for groups that experts do not make.
    """
    _check(experts, scores)
    if correction is not None:
        check_vector("correction", correction, experts)
    routing = _RoutingArguments(
        sigmoid=scores["kind"] == "sigmoid",
        normalise=scores["normalise"],
        scale=scores["scale"],
        groups=scores["groups"],
        group_topk=scores["group_topk"],
        two_best=scores["group_score"] == "top2",
        correction=address_or_zero(correction),
    )
    arguments = _RouteArguments(
        logits=logits, experts=experts, top_k=scores["top_k"], routing=routing, out=out
    )
    return Call(_route, arguments, 1, tokens_per_task(_PASSES * experts), count)


def _check(experts: int, scores: Mapping[str, Any]) -> None:
    groups = scores["groups"]
    demand_size("experts", experts, 1, MAX_SIZE)
    demand_size("groups", groups, 1, experts)
    if experts % groups:
        raise ShapeError(f"{experts} experts do not make {groups} groups of equal size")
    size = experts // groups
    demand_size("group_topk", scores["group_topk"], 1, groups)
    demand_size("top_k", scores["top_k"], 1, size * scores["group_topk"])
    if groups > 1 and scores["group_score"] == "top2":
        demand_size("experts of a group whose best two are summed", size, 2, experts)


def _route(arguments: _RouteArguments, tokens: int, task: int) -> None:
    experts, top_k, given = arguments.experts, arguments.top_k, arguments.routing
    routing = Routing(
        given.sigmoid,
        given.normalise,
        given.scale,
        given.groups,
        given.group_topk,
        given.two_best,
        given.correction,
    )
    floats, ints = np.empty((4, experts), np.float32), np.empty((2, experts), np.int32)
    scratch = RouteScratch(floats[0], floats[1], ints[0], floats[2], floats[3], ints[1])
    some = larger(1, NUMBERS_PER_TASK // (_PASSES * experts))
    for row in range(task * some, smaller(tokens, (task + 1) * some)):
        logits = floats_at(row_at(arguments.logits, row), experts)
        ids = numbers_at(arguments.out.ids + row * top_k * 4, top_k, np.int32)
        weights = floats_at(arguments.out.weights + row * top_k * 4, top_k)
        route(logits, routing, scratch, ids, weights)
