"""Fusions of models whose rows see whole sequences: towers and encoders on the CUDA backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple, Protocol

import torch
from spaninfer_kernels_cuda import activation
from torch import Tensor

from spaninfer_engine.backends.cuda.fusions.attention import HEADS, PROJECTION, SPLIT, Backend
from spaninfer_engine.backends.cuda.fusions.layers import sums_and_norms
from spaninfer_engine.ops.fuse import can_join, joined, joined_linears, use_of
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.step import Step
from spaninfer_engine.ops.table import Claim, Kernel, Pack
from spaninfer_engine.spec.mlp_nodes import ActivationName

GRAIN = 8  # columns of weights come in multiples of this many, with zeros behind
# From head to head, channels are a multiple of this many: attention in heads of 72 computes 294
# TFLOP/s where they lie together, 367 where they are 80 apart (8 x 5,476 patches, H200).
APART = 16
_ROTATION = ("r = rotate q", "s = rotate k")


class RaggedBackend(Backend, Protocol):
    """The CUDA operators of towers and encoders, as far as claims use more than the table."""

    def activated_linear(
        self, x: Tensor, *, act: ActivationName, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """act(x @ weight.T + bias)."""
        ...


def claims_of_sequences(ops: RaggedBackend) -> Iterator[Claim]:
    """Yield the claims, those that cover most first."""
    yield from _attentions(ops)
    yield _activated(ops)
    yield from sums_and_norms(ops)
    yield from _gated(ops)
    yield joined_linears(ops, 3)
    yield joined_linears(ops, 2)


def filled(x: Tensor, axis: int = 0, grain: int = GRAIN) -> Tensor:
    """Return x with zeros behind, so that the axis is a multiple of `grain`; x itself if it is."""
    missing = -x.shape[axis] % grain
    if not missing:
        return x
    shape = list(x.shape)
    shape[axis] = missing
    return torch.cat([x, x.new_zeros(shape)], axis)


# ---- attention -----------------------------------------------------------------------------------


def _attentions(ops: RaggedBackend) -> Iterator[Claim]:
    """Yield claims of projections, the rotation of queries and keys where they lie, and attention.

    Projections are one or three, and some models rotate nothing.
    """
    for projections, rotations in product((PROJECTION, SPLIT), (_ROTATION, ())):
        query, key = "rs" if rotations else "qk"
        yield Claim(
            "project_rotate_attend" if rotations else "project_attend",
            (
                *projections,
                *HEADS,
                *rotations,
                f"o = attend_ragged {query} {key} v",
                "m = merge_heads o",
            ),
            "m",
            partial(_project_and_attend, ops),
            _can_attend,
        )


class _Taken(NamedTuple):
    """The operations of a claim by what they do."""

    linears: tuple[Operation, ...]
    counts: tuple[int, ...]  # of heads: of queries, keys, values
    rotations: tuple[Operation, ...]
    attention: Operation

    @classmethod
    def of(cls, operations: Sequence[Operation]) -> _Taken:
        """Sort the operations of a claim."""
        by_name: dict[str, list[Operation]] = {}
        for operation in operations:
            by_name.setdefault(operation.operator, []).append(operation)
        return cls(
            tuple(by_name["linear"]),
            tuple(int(each.number("heads")) for each in by_name["split_heads"]),
            tuple(by_name.get("rotate", ())),
            by_name["attend_ragged"][0],
        )


def _can_attend(operations: Sequence[Operation]) -> bool:
    """Return True if all heads have one size, and queries and keys are rotated alike."""
    taken = _Taken.of(operations)
    sizes: tuple[Any, ...] = tuple(use_of(each, "weight").num_rows for each in taken.linears)
    if len(taken.linears) == 1:
        split: Any = operations[1].constant("sizes")
        sizes = split
    dims = {size // count for size, count in zip(sizes, taken.counts, strict=True)}
    alike = len({each.constants for each in taken.rotations}) <= 1
    return len(dims) == 1 and alike and can_join(taken.linears)


def _project_and_attend(ops: RaggedBackend, operations: Sequence[Operation], pack: Pack) -> Kernel:
    """Return the kernel; heads lie so far apart that each begins with a sector of memory."""
    taken = _Taken.of(operations)
    counts, heads = list(taken.counts), sum(taken.counts)
    packed = joined(taken.linears, ops, pack)
    size = len(packed["weight"]) // heads
    weights = {
        name: filled(part.view(heads, size, -1), 1, APART).flatten(0, 1).squeeze(1)
        for name, part in packed.items()
    }
    biases = {
        use.argument: pack([use], ops.layout("attend_ragged", use.argument))
        for use in taken.attention.weights
    }
    asked: dict[str, Any] = {**biases, **dict(taken.attention.constants)}
    rotate = _rotation(ops, taken.rotations, counts[0] + counts[1])

    def kernel(step: Step[Tensor], x: Tensor) -> Tensor:
        both = ops.linear(x, **weights)
        every = both.view(len(both), heads, both.shape[1] // heads)
        rotate(step, every)
        query, key, value = torch.split(every[..., :size], counts, 1)
        return ops.attend_ragged(step, query, key, value, **asked).flatten(1)

    return kernel


def _rotation(
    ops: RaggedBackend, rotations: Sequence[Operation], count: int
) -> Callable[[Step[Tensor], Tensor], None]:
    """Return what rotates the first `count` heads where they lie."""
    if not rotations:
        return lambda _step, _heads: None
    rope, style = int(rotations[0].number("rope")), rotations[0].constant("style")

    def rotate(step: Step[Tensor], heads: Tensor) -> None:
        cos, sin = step.rotations[rope]
        ops.kernels.rotate_heads_in_place(
            heads[:, :count], cos, sin, interleaved=style == "interleaved"
        )

    return rotate


# ---- MLPs ----------------------------------------------------------------------------------------


def _activated(ops: RaggedBackend) -> Claim:
    """Claim a GEMM and the activation of its results."""

    def build(taken: Sequence[Operation], pack: Pack) -> Kernel:
        linear, activated = taken
        weights = joined([linear], ops, pack)
        act: Any = activated.constant("act")
        return lambda _step, x: ops.activated_linear(x, act=act, **weights)

    return Claim("activated_linear", ("u = linear x", "y = activation u"), "y", build)


def _gated(ops: RaggedBackend) -> Iterator[Claim]:
    """Yield claims of gated MLPs' first projections, filled up with zeros, as a single GEMM.

    The two are one below the other in the checkpoint (gate and up, or up and gate), or apart.
    """
    gate = "y = gate g u"
    yield Claim(
        "gated_linears",
        ("g = linear x", "u = linear x", gate),
        "y",
        lambda taken, pack: _gated_linear(ops, _halves_apart(ops, taken[:2], pack), taken[2]),
        lambda taken: can_join(taken[:2]) and _is_square(taken),
    )
    for first, second in ("gu", "ug"):
        yield Claim(
            "gated_linear",
            ("b = linear x", f"{first} {second} = split b", gate),
            "y",
            partial(_build_halves, ops, swapped=first == "u"),
            lambda taken: len(set(_sizes(taken[1]))) == 1 and _has_kernel(taken[2]),
        )


_Halves = dict[str, tuple[Tensor, Tensor]]
"""Weight and bias of the gate, and of what it is multiplied by."""


def _build_halves(
    ops: RaggedBackend, taken: Sequence[Operation], pack: Pack, *, swapped: bool
) -> Kernel:
    linear, _, gate = taken
    order = slice(None, None, -1 if swapped else 1)
    halves = {
        name: tuple(part.chunk(2)[order]) for name, part in joined([linear], ops, pack).items()
    }
    return _gated_linear(ops, halves, gate)


def _halves_apart(ops: RaggedBackend, linears: Sequence[Operation], pack: Pack) -> _Halves:
    gate, up = linears
    parts = {
        use.argument: tuple(
            pack([use_of(each, use.argument)], ops.layout("linear", use.argument))
            for each in (gate, up)
        )
        for use in gate.weights
    }
    return {name: (first, second) for name, (first, second) in parts.items()}


def _gated_linear(ops: RaggedBackend, halves: _Halves, gate: Operation) -> Kernel:
    act: Any = gate.constant("act")
    weights = {name: torch.cat([filled(half) for half in pair]) for name, pair in halves.items()}
    weight, bias = weights["weight"], weights.get("bias")
    return lambda _step, x: ops.gated_linear(filled(x, 1), act=act, weight=weight, bias=bias)


def _is_square(taken: Sequence[Operation]) -> bool:
    """Return True if gate and up have as many rows, and the gate an activation of our kernels."""
    gate, up, operation = taken
    rows = {use_of(each, "weight").shape[0] for each in (gate, up)}
    return len(rows) == 1 and _has_kernel(operation)


def _sizes(split: Operation) -> tuple[Any, ...]:
    sizes = split.constant("sizes")
    assert isinstance(sizes, tuple)
    return sizes


def _has_kernel(gate: Operation) -> bool:
    return gate.constant("act") in activation.ACTS
