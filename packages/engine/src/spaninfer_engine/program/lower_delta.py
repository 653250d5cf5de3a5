"""Lowering of linear attention by the gated delta rule."""

from __future__ import annotations

from typing import Any

from spaninfer_engine.ops.operation import FlatRows, GroupedRows, Use
from spaninfer_engine.program.builder import ProgramBuilder
from spaninfer_engine.spec.delta_nodes import DeltaAttention, GroupedDelta, SplitDelta
from spaninfer_engine.spec.weight_nodes import Linear


def lower_delta(program: ProgramBuilder, node: DeltaAttention, x: str) -> str:
    """Append what such a layer computes of x; return its value."""
    qkv, z, b, a = _projected(program, node, x)
    where: dict[str, Any] = {"group": node.group, "layer": program.layer_in_group(node.group)}
    conv = Use("weight", (node.conv,), view=FlatRows())
    mixed = program.add("convolve", qkv, name="mixed", uses=(conv,), **where)
    mixed = program.add("activation", mixed, name="mixed", act="silu")
    sizes = (node.keys, node.keys, node.values)
    parts = program.add_many("split", mixed, names=("q", "k", "v"), sizes=sizes)
    q, k, v = (
        program.add("split_heads", part, name=name, heads=heads)
        for part, name, heads in zip(
            parts, "qkv", (node.key_heads, node.key_heads, node.value_heads), strict=True
        )
    )
    uses = (Use("a_log", (node.a_log,)), Use("dt_bias", (node.dt_bias,)))
    gates = program.add_many("delta_gates", a, b, names=("g", "beta"), uses=uses)
    read = program.norm(node.norm, program.add("delta_rule", q, k, v, *gates, name="read", **where))
    z = program.add("split_heads", z, name="z", heads=node.value_heads)
    read = program.add("gate", z, read, name="read", act="silu")
    return program.linear(node.out, program.add("merge_heads", read, name="read"), "attention")


def _projected(program: ProgramBuilder, node: DeltaAttention, x: str) -> tuple[str, str, str, str]:
    """Return [q | k | v], z, b and a of x."""
    match node.projections:
        case SplitDelta(qkv=qkv, z=z, b=b, a=a):
            return (
                program.linear(qkv, x, "qkv"),
                program.linear(z, x, "z"),
                program.linear(b, x, "b"),
                program.linear(a, x, "a"),
            )
        case GroupedDelta(qkvz=qkvz, ba=ba):
            ratio = node.value_heads // node.key_heads
            values = ratio * node.value_size
            rows = (node.key_size, node.key_size, values, values)
            return (
                _some_rows(program, qkvz, x, "qkv", GroupedRows(rows, (0, 1, 2))),
                _some_rows(program, qkvz, x, "z", GroupedRows(rows, (3,))),
                _some_rows(program, ba, x, "b", GroupedRows((ratio, ratio), (0,))),
                _some_rows(program, ba, x, "a", GroupedRows((ratio, ratio), (1,))),
            )


def _some_rows(
    program: ProgramBuilder, linear: Linear, x: str, name: str, view: GroupedRows
) -> str:
    return program.add("linear", x, name=name, uses=(Use("weight", (linear.weight,), view=view),))
