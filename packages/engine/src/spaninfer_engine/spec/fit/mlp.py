"""Consistency of the sizes of MLPs: gated, plain, and routed to experts."""

from __future__ import annotations

from spaninfer_engine.spec.fit.parts import Misfits, of_linear, of_weight
from spaninfer_engine.spec.mlp_nodes import (
    EachExpert,
    FusedGatedMLP,
    GatedMLP,
    PlainMLP,
    RoutedMLP,
    Routing,
    StackedExperts,
)


def of_mlp(node: GatedMLP | FusedGatedMLP | PlainMLP | RoutedMLP, hidden: int) -> Misfits:
    """Yield what does not fit of an MLP, experts included."""
    match node:
        case GatedMLP(gate=gate, up=up, down=down):
            inner = down.weight.shape[1]
            yield from of_linear(gate, inner, hidden)
            yield from of_linear(up, inner, hidden)
            yield from of_linear(down, hidden, inner)
        case FusedGatedMLP(gate_up=gate_up, down=down):
            yield from of_linear(gate_up, 2 * down.weight.shape[1], hidden)
            yield from of_linear(down, hidden, down.weight.shape[1])
        case PlainMLP(up=up, down=down):
            yield from of_linear(up, down.weight.shape[1], hidden)
            yield from of_linear(down, hidden, down.weight.shape[1])
        case RoutedMLP():
            yield from _routed(node, hidden)


def _routed(node: RoutedMLP, hidden: int) -> Misfits:
    experts = node.router.weight.shape[0]
    yield from of_linear(node.router, experts, hidden)
    if node.correction is not None:
        leading = node.correction.shape[:-1]
        yield from of_weight(node.correction, *((1, experts) if leading else (experts,)))
    yield from _routing(node.routing, experts)
    match node.experts:
        case EachExpert(gate=gate, up=up, down=down):
            if not len(gate) == len(up) == len(down) == experts:
                counts = f"{len(gate)}, {len(up)} and {len(down)}"
                yield f"{counts} weights are those of {experts} experts"
                return
            inner = down[0].shape[1]
            for weight in (*gate, *up):
                yield from of_weight(weight, inner, hidden)
            for weight in down:
                yield from of_weight(weight, hidden, inner)
        case StackedExperts(gate_up=both, down=down_all, layout="oi"):
            yield from of_weight(both, experts, 2 * down_all.shape[2], hidden)
            yield from of_weight(down_all, experts, hidden, down_all.shape[2])
        case StackedExperts(gate_up=both, down=down_all):
            yield from of_weight(both, experts, hidden, 2 * down_all.shape[1])
            yield from of_weight(down_all, experts, down_all.shape[1], hidden)
    if isinstance(node.experts, StackedExperts):
        yield from _expert_biases(node.experts, experts, hidden)
    if node.input_scaled and node.routing.top_k != 1:
        yield f"one expert's share can scale its input, and {node.routing.top_k} are chosen"
    if node.shared is not None:
        yield from of_mlp(node.shared, hidden)
    if node.shared_gate is not None:
        yield from of_linear(node.shared_gate, 1, hidden)


def _expert_biases(node: StackedExperts, experts: int, hidden: int) -> Misfits:
    inner = node.down.shape[2 if node.layout == "oi" else 1]
    if node.gate_up_bias is not None:
        yield from of_weight(node.gate_up_bias, experts, 2 * inner)
    if node.down_bias is not None:
        yield from of_weight(node.down_bias, experts, hidden)


def _routing(routing: Routing, experts: int) -> Misfits:
    if not 1 <= routing.groups <= experts or experts % routing.groups:
        yield f"{experts} experts do not make {routing.groups} groups"
        return
    size = experts // routing.groups
    if not 1 <= routing.group_topk <= routing.groups:
        yield f"{routing.group_topk} of {routing.groups} groups cannot be chosen"
    if not 1 <= routing.top_k <= routing.group_topk * size:
        yield f"{routing.top_k} of {routing.group_topk * size} experts cannot be chosen"
    if routing.groups > 1 and routing.group_score == "top2" and size < 2:
        yield f"groups of {size} expert have no two best"
