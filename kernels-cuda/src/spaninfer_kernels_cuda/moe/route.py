"""The router's choice: experts of tokens, their weights, and the pairs sorted by expert.

logits[T E] -> ids[T k] int32 and shares[T k] float32, best first; of equal scores the lowest expert
wins. Experts that all tokens share (`RouteOptions.shared`) follow as if they had been chosen: k and
E count them too. Pair p = t k + j is choice j of token t. `order`[T k] lists pairs by expert,
those of one expert in the order of tokens; `ends`[E] are the ends of experts in it, `place`[T k] is
its inverse. All of it is computed in float32, and is the same in every launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Call,
    FileCache,
    Float32,
    Gpu,
    Int32,
    NamedCalls,
    Operator,
    Pointer,
    Result,
    ShapeError,
    Signature,
    Source,
    Step,
    Variant,
    View,
    check_dense,
    clusters_at_once,
    compile_variant,
    element_of,
    gpu_of,
    load,
    match,
    pointer_of,
    stream_handle,
    user_cache,
    view_at,
)

from spaninfer_kernels_cuda.moe.tuning import (
    MOST_PORTABLE,
    RouteShape,
    check_route,
    cluster_blocks,
    experts_per_lane,
    launch_choice,
    launch_route,
    launch_sort,
)

Score = Literal["softmax", "sigmoid", "sqrt_softplus"]
SCORES: tuple[Score, ...] = get_args(Score)
GroupScore = Literal["max", "top2"]
_GROUP_BEST: dict[GroupScore, int] = {"max": 1, "top2": 2}


class RouteArguments(NamedTuple):
    """Addresses, the arguments of moe_route."""

    ids: Pointer
    shares: Pointer
    order: Pointer
    ends: Pointer
    place: Pointer
    logits: Pointer
    correction: Pointer
    slots: Pointer


class RouteSizes(NamedTuple):
    """Sizes and the rule of the choice, the constants of moe_route."""

    tokens: Int32
    of_block: Int32
    experts: Int32
    top_k: Int32
    groups: Int32
    group_topk: Int32
    normalise: Int32
    scale: Float32


class ChoiceArguments(NamedTuple):
    """Addresses, the arguments of moe_choose."""

    ids: Pointer
    shares: Pointer
    logits: Pointer
    correction: Pointer
    slots: Pointer


class ChoiceSizes(NamedTuple):
    """Sizes and the rule of the choice, the constants of moe_choose."""

    tokens: Int32
    experts: Int32
    top_k: Int32
    groups: Int32
    group_topk: Int32
    normalise: Int32
    scale: Float32


class CountArguments(NamedTuple):
    """Addresses, the arguments of moe_count."""

    counts: Pointer
    ids: Pointer


class PlaceArguments(NamedTuple):
    """Addresses, the arguments of moe_place."""

    order: Pointer
    ends: Pointer
    place: Pointer
    counts: Pointer
    ids: Pointer


class SortSizes(NamedTuple):
    """Sizes, the constants of moe_count and moe_place."""

    pairs: Int32
    experts: Int32


MOE_ROUTE = Signature("moe_route", RouteArguments, RouteSizes)
MOE_CHOOSE = Signature("moe_choose", ChoiceArguments, ChoiceSizes)
MOE_COUNT = Signature("moe_count", CountArguments, SortSizes)
MOE_PLACE = Signature("moe_place", PlaceArguments, SortSizes)
SOURCE = Source(
    "spaninfer_kernels_cuda",
    "moe/route.cu",
    headers=("types.cuh", "reduce.cuh", "overlap.cuh", "cluster.cuh"),
    parts=("moe/route.cuh", "moe/sort.cuh", "moe/sets.cuh"),
    kernels=(MOE_ROUTE, MOE_CHOOSE, MOE_COUNT, MOE_PLACE),
)

_ALIGNMENT = 16  # of a workspace, in bytes


class RouteOptions(NamedTuple):
    """The rule of a choice (the names are those of op-reference's `route`).

    Scores are the softmax of all logits, their sigmoid, or sqrt(softplus). With groups, the choice
    is made within the `group_topk` groups of neighbours that are best by their largest score
    ("max") or the sum of their two largest ("top2"). Weights are the chosen scores, over their sum
    if `normalise`, times `scale`. Every token has `shared` experts besides, numbered behind those
    that logits choose, with weights of 1.
    """

    top_k: int
    score: Score = "softmax"
    normalise: bool = False
    scale: float = 1.0
    groups: int = 1
    group_topk: int = 1
    group_score: GroupScore = "max"
    shared: int = 0

    @property
    def choices(self) -> int:
        """Experts of a token: those that are chosen, and those that are shared."""
        return self.top_k + self.shared


class Routing(NamedTuple):
    """Arrays of a choice: ids, shares, and the maps between pairs and their sorted order."""

    ids: object
    shares: object
    order: object
    ends: object
    place: object


@dataclass(frozen=True, slots=True)
class PreparedRoute:
    """A choice for one number of tokens.

    `launch` needs `workspace_bytes` of 16-byte aligned memory with any content.
    """

    shape: RouteShape
    workspace_bytes: int
    _route: Call[RouteArguments] | None  # choice and sort by one cluster
    _choose: Call[ChoiceArguments] | None
    _sort: tuple[Call[CountArguments], Call[PlaceArguments]] | None

    def launch(
        self,
        logits: object,
        *,
        out: Routing,
        workspace: object,
        correction: object = None,
        slots: object = None,
        stream: object = None,
    ) -> None:
        """Write the choice to `out`: ids and shares alone where no sort was prepared.

        `correction`[E] float32 is added to the scores that choose. Tokens with a negative number in
        `slots`[T] int32 are padding: their experts are -1, their weights 0.
        """
        at = RouteArguments(
            ids=pointer_of(out.ids),
            shares=pointer_of(out.shares),
            order=pointer_of(out.order),
            ends=pointer_of(out.ends),
            place=pointer_of(out.place),
            logits=pointer_of(logits),
            correction=pointer_of(correction),
            slots=pointer_of(slots),
        )
        self.start(stream_handle(stream, logits), at, pointer_of(workspace))

    def start(self, handle: int, at: RouteArguments, workspace: int) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self._route is not None:
            self._route(handle, at)
        if self._choose is not None:
            choice = ChoiceArguments(at.ids, at.shares, at.logits, at.correction, at.slots)
            self._choose(handle, choice)
        if self._sort is not None:
            count, place_pairs = self._sort
            count(handle, CountArguments(workspace, at.ids))
            place_pairs(handle, PlaceArguments(at.order, at.ends, at.place, workspace, at.ids))

    @property
    def by_name(self) -> NamedCalls:
        """The calls, their values named as the arrays; `counts` is the workspace."""
        calls = self._route, self._choose, *(self._sort or ())
        return NamedCalls(tuple((call, {}) for call in calls if call is not None))


def variant_for(options: RouteOptions, experts: int, dtype: object) -> Variant:
    """Return the variant for logits of `dtype` (float32, 16-bit floats)."""
    if options.score not in SCORES:
        raise ShapeError(f"there is no score {options.score!r}; there are {', '.join(SCORES)}")
    if options.group_score not in _GROUP_BEST:
        raise ShapeError(
            f"group_score is {options.group_score!r}; allowed are {', '.join(_GROUP_BEST)}"
        )
    element = element_of(dtype)
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "PER_LANE": experts_per_lane(experts, options.groups),
        "SCORE": options.score,
        "GROUP_BEST": _GROUP_BEST[options.group_score] if options.groups > 1 else 0,
        "SHARED": options.shared,
    }
    return Variant.of("moe_route", SOURCE, macros, element.architectures)


def prepare(
    options: RouteOptions,
    *,
    tokens: int,
    experts: int,
    gpu: Gpu,
    dtype: object = "float32",
    sorts: bool = True,
    cluster: int | None = None,
    cache: FileCache | None = None,
) -> PreparedRoute:
    """Return the choice for logits[tokens experts] of `dtype` on `gpu`, compiled or cached.

    Without `sorts` it writes ids and shares and nothing else. `cluster` is the number of blocks
    that sort, chosen for the shape unless given.

    Raises ShapeError or DTypeError for unsupported sizes or types, CompileError where there is no
    compiler.
    """
    groups = options.groups, options.group_topk
    shape = RouteShape(tokens, experts, options.top_k, *groups, shared=options.shared)
    check_route(shape)
    variant = variant_for(options, experts, dtype)
    compiled = compile_variant(variant, gpu.arch, cache or user_cache())
    if cluster is None:
        cluster = cluster_blocks(shape, gpu.arch)
    rule = options.groups, options.group_topk, options.normalise, options.scale
    if sorts and cluster:
        kernel, grid = load(compiled, gpu, MOE_ROUTE), launch_route(shape, cluster)
        if cluster <= MOST_PORTABLE or clusters_at_once(kernel, grid.launch):
            sizes = RouteSizes(tokens, grid.of_block, experts, options.top_k, *rule)
            at_once = Call(kernel, grid.launch, sizes)
            return PreparedRoute(shape, 0, _route=at_once, _choose=None, _sort=None)
    choose, choice_grid = None, launch_choice(tokens)
    if choice_grid:
        choice_sizes = ChoiceSizes(tokens, experts, options.top_k, *rule)
        choose = Call(load(compiled, gpu, MOE_CHOOSE), choice_grid, choice_sizes)
    sort, counts = None, 0
    if sorts:
        sort_grid, all_experts = launch_sort(shape), experts + options.shared
        sort_sizes = SortSizes(shape.pairs, all_experts)
        sort = (
            Call(load(compiled, gpu, MOE_COUNT), sort_grid, sort_sizes),
            Call(load(compiled, gpu, MOE_PLACE), sort_grid, sort_sizes),
        )
        counts = sort_grid.grid[0] * (all_experts + 1) * 4
    return PreparedRoute(shape, counts, _route=None, _choose=choose, _sort=sort)


def route(
    logits: object,
    options: RouteOptions,
    *,
    correction: object = None,
    slots: object = None,
    stream: object = None,
) -> Routing:
    """Return the experts that logits[T E] choose, as new arrays.

    `correction`[E] float32 is added to the scores that choose, and to nothing else. Tokens with a
    negative number in `slots`[T] int32 are padding: their experts are -1, their weights 0. Raises
    ShapeError, DTypeError or DeviceError for arguments that do not fit.
    """
    results = _route.start(options, (logits, correction, slots), stream=stream)
    return Routing(*results)


def _prepare_call(options: RouteOptions, given: dict[str, ArraySpec]) -> Step:
    """Return the choice for arrays with these specs."""
    logits = view_at(given["logits"])
    tokens, experts = match(logits=(logits, "T E")).values()
    check_dense(logits.dtype, logits=logits)
    gpu = gpu_of(logits=logits, **check_choice(given, tokens, experts))
    choice = prepare(options, tokens=tokens, experts=experts, gpu=gpu, dtype=logits.dtype)
    chosen, pairs = (tokens, options.choices), (choice.shape.pairs,)
    results: tuple[Result, ...] = (
        ("ids", chosen, np.int32, 1),
        ("shares", chosen, np.float32, 1),
        ("order", pairs, np.int32, 1),
        ("ends", (experts + options.shared,), np.int32, 1),
        ("place", pairs, np.int32, 1),
    )
    scratch: list[Result] = []
    if choice.workspace_bytes:
        scratch.append(("counts", (choice.workspace_bytes,), np.uint8, _ALIGNMENT))
    return Step(gpu, choice.by_name, results, tuple(scratch))


_route = Operator("logits correction slots", _prepare_call)


def check_choice(given: dict[str, ArraySpec], tokens: int, experts: int) -> dict[str, View]:
    """Return views of what a choice sees beside logits, checked; none of what is not given."""
    views = {}
    for name, size, dtype in (("correction", experts, np.float32), ("slots", tokens, np.int32)):
        if name in given:
            views[name] = view_at(given[name])
            match(**{name: (views[name], f"{size}")})
            check_dense(dtype, **{name: views[name]})
    return views


_GROUPS: tuple[tuple[int, GroupScore], ...] = ((1, "max"), (4, "max"), (4, "top2"))
VARIANTS: tuple[Variant, ...] = (
    *(
        variant_for(RouteOptions(2, score, groups=groups, group_score=best), experts, dtype)
        for score in SCORES
        for groups, best in _GROUPS
        for experts in (128, 512)
        for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
    ),
    variant_for(RouteOptions(6, shared=2), 64, np.float32),
)
"""Every score, group score and element type, few and many experts per lane; and shared ones."""
