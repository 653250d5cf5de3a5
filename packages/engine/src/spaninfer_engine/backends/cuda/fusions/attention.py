"""Fusions around attention: projections into the KV cache, and the reads of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from span_attention import append
from torch import Tensor

from spaninfer_engine.backends.cuda.attention.plan import Plan
from spaninfer_engine.backends.cuda.fusions.coded_norms import Projection
from spaninfer_engine.backends.cuda.kernels.heads import Heads
from spaninfer_engine.backends.cuda.kernels.kernels import Kernels
from spaninfer_engine.ops.fuse import can_join, joined, single, use_of
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.step import Rotation, Step
from spaninfer_engine.ops.table import Claim, Kernel, Ops, Pack

SPLIT = ("a = linear x", "b = linear x", "c = linear x")
PROJECTION = ("y = linear x", "a b c = split y")
HEADS = ("q = split_heads a", "k = split_heads b", "v = split_heads c")
_NORMS = ("m = rms_norm q", "n = rms_norm k")


class Backend(Ops[Tensor], Protocol):
    """The CUDA operators, as far as claims use more than the table."""

    kernels: Kernels
    joins_shared_experts: bool  # with those that are chosen: where all weights are numbers

    def is_plain(self, operation: Operation) -> bool:
        """Return True if plain torch operators compute the operation because there is no kernel."""
        ...

    def can_select(self, operations: Sequence[Operation]) -> bool:
        """Return True; ConfigError where sparse attention would have to read codes."""
        ...

    def gated_linear(self, x: Tensor, *, act: Any, weight: Tensor, bias: Tensor | None) -> Tensor:
        """act(gate) * up of x[T C] @ weight[2I C].T + bias, whose rows are gate, then up."""
        ...


def claims_to_spans(ops: Backend) -> Iterator[Claim]:
    """Yield claims that end with an append, with what is in front of it: projections or nothing."""
    for norms in (_NORMS, ()):
        name = "norm_rotate_append" if norms else "rotate_append"
        query, key = ("m", "n") if norms else ("q", "k")
        rest = (*norms, f"r = rotate {query}", f"s = rotate {key}", "= append s v")
        for projections in (SPLIT, PROJECTION):
            yield Claim(
                f"project_{name}",
                (*projections, *HEADS, *rest),
                "r",
                partial(_project_and_append, ops, len(projections)),
                partial(_can_project, len(projections), len(rest)),
            )
        yield Claim(
            name,
            rest,
            "r",
            lambda taken, pack: _append(ops, taken, pack),
            _can_append,
        )
    yield Claim(
        "rotate_append_keys",  # of an indexer, which has no values
        ("r = rotate q", "s = rotate k", "= append s"),
        "r",
        lambda taken, pack: _append(ops, taken, pack),
        _can_append,
    )


def claims_to_wanted(ops: Backend) -> Iterator[Claim]:
    """Yield claims that end with the last attention, of which only rows with logits are read.

    Others need keys and values, but neither queries nor attention: of one prompt all but one row.
    """
    for claim in claims_to_spans(ops):
        if claim.name.startswith("project"):
            yield Claim(
                f"{claim.name}_attend",
                (*claim.pattern, "o = attend r", "w = gather_rows o"),
                "w",
                partial(_attend_wanted, ops, claim),
                partial(_can_attend, ops, claim),
            )


def _can_attend(ops: Backend, claim: Claim, taken: Sequence[Operation]) -> bool:
    return claim.accepts(taken[:-2]) and not ops.is_plain(taken[-2])


def _attend_wanted(ops: Backend, claim: Claim, taken: Sequence[Operation], pack: Pack) -> Kernel:
    *before, attention, _ = taken
    write, attend = claim.build(before, pack), single(attention, ops, pack)
    write_keys = _KeysAndValues(ops, before, pack)

    def kernel(step: Step[Tensor], x: Tensor) -> Tensor:
        plan: Plan = step.attention
        few = plan.of_logits(step.logit_indices)
        if few is None:
            return ops.gather_rows(step, attend(step, write(step, x)))
        write_keys(step, x)
        angles = (Rotation(*(part[step.logit_indices] for part in each)) for each in step.rotations)
        step_of_few = replace(step, rotations=tuple(angles), attention=few)
        # Their keys are written once more, by the kernel that makes queries and keys of a GEMM.
        read: Tensor = attend(step_of_few, write(step_of_few, x[step.logit_indices]))
        return read

    return kernel


class _KeysAndValues:
    """The part of projections and append that other rows need."""

    def __init__(self, ops: Backend, taken: Sequence[Operation], pack: Pack) -> None:
        linears = [each for each in taken if each.operator == "linear"]
        query, key, value = (each for each in taken if each.operator == "split_heads")
        self._heads, self._kv_heads = int(query.number("heads")), int(key.number("heads"))
        self._write = _Write(ops, taken[taken.index(value) + 1 :], pack)
        self._ops, self._joined = ops, joined(linears, ops, pack)

    def __call__(self, step: Step[Tensor], x: Tensor) -> None:
        """Write keys and values of x[T C] into the spans."""
        layout = step.attention.groups[self._write.group].layout
        border = self._heads * layout.key_size
        both = self._ops.linear(x, **{name: part[border:] for name, part in self._joined.items()})
        self._write(step, Heads.of_keys(both, self._kv_heads, layout))


def _can_project(num_projections: int, num_rest: int, taken: Sequence[Operation]) -> bool:
    linears = [each for each in taken[:num_projections] if each.operator == "linear"]
    return can_join(linears) and _can_append(taken[-num_rest:])


def _can_append(taken: Sequence[Operation]) -> bool:
    """Return True if queries and keys have the same norm and rotation."""
    *pairs, _ = taken
    return all(a.constants == b.constants for a, b in zip(pairs[::2], pairs[1::2], strict=True))


def _project_and_append(
    ops: Backend, num_projections: int, taken: Sequence[Operation], pack: Pack
) -> Kernel:
    linears = [each for each in taken[:num_projections] if each.operator == "linear"]
    weights = joined(linears, ops, pack)
    heads = taken[num_projections : num_projections + len(HEADS)]
    query_heads, kv_heads, _ = (int(each.number("heads")) for each in heads)
    write = _Write(ops, taken[num_projections + len(HEADS) :], pack)

    def kernel(step: Step[Tensor], x: Tensor) -> Tensor:
        both = ops.linear(x, **weights)
        layout = step.attention.groups[write.group].layout
        return write(step, Heads.of_row(both, query_heads, kv_heads, layout))

    return Projection(kernel, weights["weight"])


def _append(ops: Backend, taken: Sequence[Operation], pack: Pack) -> Kernel:
    write = _Write(ops, taken, pack)

    def kernel(
        step: Step[Tensor], query: Tensor, key: Tensor, value: Tensor | None = None
    ) -> Tensor:
        return write(step, Heads.of(query, key, key if value is None else value))

    return kernel


class _Write:
    """Norms, rotations and the append of one layer: what is the same for every step."""

    def __init__(self, ops: Backend, taken: Sequence[Operation], pack: Pack) -> None:
        *norms, rotate, _, write = taken
        self.group, self._layer = int(write.number("group")), int(write.number("layer"))
        self._rope = int(rotate.number("rope"))
        self._interleaved = rotate.constant("style") == "interleaved"
        self._kernels = ops.kernels
        self._norm: append.HeadNorm | None = None
        if norms:
            query_weight, key_weight = (
                pack([use_of(each, "weight")], ops.layout("rms_norm", "weight")) for each in norms
            )
            offset = float(bool(norms[0].constant("plus_one")))
            eps = norms[0].number("eps")
            self._norm = append.HeadNorm(query_weight, key_weight, eps, offset)

    def __call__(self, step: Step[Tensor], heads: Heads) -> Tensor:
        """Write keys and values; return the queries."""
        plan: Plan = step.attention
        rotary = plan.rotary(step.rotations, self._rope, self._interleaved)
        slots, spans = plan.slices.slots[self.group], plan.groups[self.group].spans[self._layer]
        return self._kernels.append_rows(heads, slots, spans, rotary, self._norm)


def attend_and_merge(ops: Backend, taken: Sequence[Operation], pack: Pack) -> Kernel:
    """Return the kernel of an attention whose heads are to lie side by side."""
    sinks: Tensor | None = None
    if taken[0].weights:
        sinks = pack([use_of(taken[0], "sinks")], ops.layout("attend", "sinks"))
    group, layer = (int(taken[0].number(name)) for name in ("group", "layer"))
    scoring = taken[0].scoring()

    def kernel(step: Step[Tensor], query: Tensor) -> Tensor:
        plan: Plan = step.attention
        return plan.attend(query, group, layer, scoring, sinks)

    return kernel
