"""Lowering of MLP nodes: gated, plain, and routed to experts."""

from __future__ import annotations

from dataclasses import replace

from spaninfer_engine.ops.operation import OneAxis, TakenApart, Use
from spaninfer_engine.program.builder import ProgramBuilder, affine
from spaninfer_engine.spec.mlp_nodes import (
    EachExpert,
    FusedGatedMLP,
    GatedMLP,
    PlainMLP,
    RoutedMLP,
    Routing,
    StackedExperts,
)
from spaninfer_engine.spec.weight_nodes import Linear, Weight


def lower_mlp(
    program: ProgramBuilder, node: GatedMLP | FusedGatedMLP | PlainMLP | RoutedMLP, x: str
) -> str:
    """Append what an MLP computes of x; return its value."""
    match node:
        case GatedMLP(gate=gate, up=up, down=down, act=act):
            opened, raised = program.linear(gate, x, "gate"), program.linear(up, x, "up")
            return _gated(program, opened, raised, down, act)
        case FusedGatedMLP(gate_up=gate_up, down=down, act=act, up_first=up_first):
            inner = gate_up.weight.shape[0] // 2
            both = program.linear(gate_up, x, "gate_up")
            sizes = (inner, inner)
            names = ("up", "gate") if up_first else ("gate", "up")
            opened, raised = program.add_many("split", both, names=names, sizes=sizes)
            if up_first:
                opened, raised = raised, opened
            return _gated(program, opened, raised, down, act)
        case PlainMLP(up=up, down=down, act=act):
            raised = program.linear(up, x, "up")
            inner_rows = program.add("activation", raised, name="inner", act=act)
            return program.linear(down, inner_rows, "mlp")
        case RoutedMLP():
            return _routed(program, node, x)


def _gated(program: ProgramBuilder, gate: str, up: str, down: Linear, act: str) -> str:
    return program.linear(down, program.add("gate", gate, up, name="inner", act=act), "mlp")


def _routed(program: ProgramBuilder, node: RoutedMLP, x: str) -> str:
    router = affine(node.router.weight, node.router.bias)
    logits = program.add("router", x, name="routing", uses=router)
    chosen, taken = _route(program, node, logits, node.routing), x
    if node.input_scaled:
        taken = program.add("scale_rows", x, chosen[1], name="scaled")
        one = replace(node.routing, normalise=True)  # of one expert that is a share of 1
        chosen = _route(program, node, logits, one)
    y = _experts(program, node, taken, chosen)
    if node.shared is None:
        return y
    shared = lower_mlp(program, node.shared, x)
    if node.shared_gate is not None:
        gate = program.linear(node.shared_gate, x, "gate")
        shared = program.add("sigmoid_gate", shared, gate, name="mlp")
    return program.add("add", y, shared, name="mlp", scale=1.0)


def _route(
    program: ProgramBuilder, node: RoutedMLP, logits: str, routing: Routing
) -> tuple[str, ...]:
    uses = () if node.correction is None else (_correction(node.correction),)
    names = "ids", "shares"
    return program.add_many("route", logits, names=names, uses=uses, routing=routing)


def _experts(program: ProgramBuilder, node: RoutedMLP, x: str, chosen: tuple[str, ...]) -> str:
    match node.experts:
        case EachExpert(gate=gate, up=up, down=down):
            layout = "oi"
            uses = tuple(
                Use(argument, tensors, stacked=True)
                for argument, tensors in (("gate", gate), ("up", up), ("down", down))
            )
        case StackedExperts(layout=layout):
            uses = _stacked(node.experts)
    return program.add("experts", x, *chosen, name="mlp", uses=uses, act=node.act, layout=layout)


def _stacked(experts: StackedExperts) -> tuple[Use, ...]:
    axis = 1 if experts.layout == "oi" else 2
    rows, numbers = (TakenApart(a) if experts.in_turn else None for a in (axis, 1))
    uses = [Use("gate_up", (experts.gate_up,), view=rows), Use("down", (experts.down,))]
    if experts.gate_up_bias is not None:
        uses.append(Use("gate_up_bias", (experts.gate_up_bias,), view=numbers))
    if experts.down_bias is not None:
        uses.append(Use("down_bias", (experts.down_bias,)))
    return tuple(uses)


def _correction(weight: Weight) -> Use:
    return Use("correction", (weight,), view=OneAxis() if len(weight.shape) > 1 else None)
