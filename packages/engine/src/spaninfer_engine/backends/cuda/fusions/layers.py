"""Fusions of the CUDA backend: one kernel for several operators of the table.

A layer of Llama's kind is five steps: projections to spans, attention, projection with sum and
norm, gated MLP, projection with sum and norm. Fewer steps cost the host less where a step is not
captured, and small-M GEMMs add bias, residual and gate without another launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from spaninfer_kernels_cuda import norm
from torch import Tensor

from spaninfer_engine.backends.cuda.fusions.attention import (
    Backend,
    attend_and_merge,
    claims_to_spans,
    claims_to_wanted,
)
from spaninfer_engine.backends.cuda.fusions.coded_norms import NormKernel, Projection
from spaninfer_engine.backends.cuda.fusions.experts import claims_of_experts
from spaninfer_engine.backends.cuda.fusions.latent_attention import claim_latent_attention
from spaninfer_engine.backends.cuda.fusions.linear_attention import claims_of_linear_attention
from spaninfer_engine.ops.fuse import can_join, joined, joined_linears, single
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.table import Claim, Kernel, Pack


def claims_of(ops: Backend) -> tuple[Claim, ...]:
    """Return the claims, those that cover most first."""
    kernel_attends = Claim(
        "span_attention",
        ("o = attend q", "m = merge_heads o"),
        "m",
        lambda taken, pack: attend_and_merge(ops, taken, pack),
        lambda taken: not ops.is_plain(taken[0]),
    )
    return (
        *claims_to_wanted(ops),
        *claims_to_spans(ops),
        claim_latent_attention(ops),
        *claims_of_linear_attention(ops),
        kernel_attends,
        *claims_of_experts(ops),
        *sums_and_norms(ops),
        Claim(
            "gated_linears",
            ("g = linear x", "u = linear x", "y = gate g u"),
            "y",
            lambda taken, pack: _gated(ops, taken[:2], taken[2], pack),
            lambda taken: can_join(taken[:2]),
        ),
        Claim(
            "gated_linear",
            ("b = linear x", "g u = split b", "y = gate g u"),
            "y",
            lambda taken, pack: _gated(ops, taken[:1], taken[2], pack),
        ),
        joined_linears(ops, 3),
        joined_linears(ops, 2),
        _named(ops, "span_attention", "o = attend q", lambda taken: not ops.is_plain(taken[0])),
        _named(ops, "plain_attention", "o = attend q"),
        _named(ops, "sparse_selection", "s = select_keys q w", ops.can_select),
        _named(ops, "sparse_attention", "o = attend_selected q s"),
    )


def _named(
    ops: Backend,
    name: str,
    line: str,
    accepts: Callable[[Sequence[Operation]], bool] = lambda taken: True,  # noqa: ARG005
) -> Claim:
    """Claim a single operation, so that the listing says by what it is computed."""
    (result, *_) = line.split()
    return Claim(name, (line,), result, lambda taken, pack: single(taken[0], ops, pack), accepts)


# ---- sums and norms ------------------------------------------------------------------------------


def sums_and_norms(ops: Backend) -> Iterator[Claim]:
    """Yield the claims of residual sums with the norms of them, first with a projection.

    Where the norm takes the place of the sum (BERT), nothing keeps the sum.
    """
    for claim in (_project_add_norm, _add_norm):
        for kind in ("rms", "layer"):
            for keeps in (False, True):
                yield claim(ops, kind, keeps=keeps)


def _project_add_norm(ops: Backend, kind: Any, *, keeps: bool) -> Claim:
    """Claim a projection, the residual sum and the norm of it."""

    def build(taken: Sequence[Operation], pack: Pack) -> Kernel:
        linear, _, normed = taken
        weights = joined([linear], ops, pack)
        weight, bias = weights["weight"], weights.get("bias")
        norm_of, norm_of_sum = (
            FusedNorm(ops, kind, normed, pack, residual=r) for r in (False, True)
        )
        kernels = ops.kernels

        def normed_sum(y: Tensor, x: Tensor) -> Tensor:
            if not isinstance(weight, Tensor):
                return norm_of(weight.multiply(y, bias, residual=x))
            if kernels.has_gemm(y, weight):
                return norm_of(kernels.multiply(y, weight, bias, residual=x))
            return norm_of_sum(ops.linear(y, weight=weight, bias=bias), residual=x)

        return NormKernel(
            lambda _step, y, x: _sum_and_norm(normed_sum, y, x, keeps=keeps),
            (norm_of, norm_of_sum),
        )

    return Claim(
        f"project_add_{kind}_norm",
        ("p = linear y", "s = add x p", f"n = {kind}_norm s"),
        "s n" if keeps else "n",
        build,
        lambda taken: taken[1].constant("scale") == 1.0,
        overwrites="x",
    )


def _add_norm(ops: Backend, kind: Any, *, keeps: bool) -> Claim:
    """Claim a residual sum and the norm of it; the sum takes the place of its first addend."""

    def build(taken: Sequence[Operation], pack: Pack) -> Kernel:
        norm_of_sum = FusedNorm(ops, kind, taken[1], pack, residual=True)

        return NormKernel(
            lambda _step, x, y: _sum_and_norm(norm_of_sum, y, x, keeps=keeps), (norm_of_sum,)
        )

    return Claim(
        f"add_{kind}_norm",
        ("s = add x y", f"n = {kind}_norm s"),
        "s n" if keeps else "n",
        build,
        lambda taken: taken[0].constant("scale") == 1.0,
        overwrites="x",
    )


def _sum_and_norm(
    norm_of_sum: Callable[[Tensor, Tensor], Tensor], y: Tensor, x: Tensor, *, keeps: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the norm of x + y, behind the sum where it is kept, which takes the place of x."""
    x = x.contiguous()
    normed = norm_of_sum(y, x)
    return (x, normed) if keeps else normed


class FusedNorm:
    """A norm with its weights, of rows or of their sum with a residual, which it becomes.

    Where its readers need codes alone, it writes these alone.
    """

    codes_only = False

    def __init__(
        self, ops: Backend, kind: Any, normed: Operation, pack: Pack, *, residual: bool
    ) -> None:
        packed = {
            use.argument: pack([use], ops.layout(normed.operator, use.argument))
            for use in normed.weights
        }
        bias = packed.get("bias")
        self._call = partial(
            ops.kernels.norm_rows,
            norm.NormOptions(kind, residual=residual, bias=bias is not None),
            weight=packed["weight"],
            bias=bias,
            eps=normed.number("eps"),
            weight_offset=float(kind == "rms" and bool(normed.constant("plus_one"))),
        )

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return the norm."""
        return self._call(x, residual=residual, codes_only=self.codes_only)


# ---- gated MLPs ----------------------------------------------------------------------------------


def _gated(ops: Backend, linears: Sequence[Operation], gate: Operation, pack: Pack) -> Kernel:
    weights = joined(linears, ops, pack, "gated_linear")
    call = partial(
        ops.gated_linear,
        act=gate.constant("act"),
        weight=weights["weight"],
        bias=weights.get("bias"),
    )
    return Projection(lambda _step, x: call(x), weights["weight"])
