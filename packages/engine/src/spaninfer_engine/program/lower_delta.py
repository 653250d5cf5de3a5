"""Lowering of linear attention by the gated delta rule."""

from __future__ import annotations

from typing import Any, Protocol

from spaninfer_engine.ops.operation import Constant, FlatRows, GroupedRows, Use
from spaninfer_engine.spec.delta_nodes import DeltaAttention, GroupedDelta, SplitDelta
from spaninfer_engine.spec.nodes import Linear, Norm


class Writing(Protocol):
    """What writes operations down: `program.lower.Lowering`."""

    def add(
        self,
        operator: str,
        *inputs: str,
        name: str,
        uses: tuple[Use, ...] = (),
        **constants: Constant,
    ) -> str:
        """Append an operation with one output; return the output."""
        ...

    def add_many(
        self,
        operator: str,
        *inputs: str,
        names: tuple[str, ...],
        uses: tuple[Use, ...] = (),
        **constants: Constant,
    ) -> tuple[str, ...]:
        """Append an operation; return its outputs."""
        ...

    def linear(self, linear: Linear, x: str, name: str) -> str:
        """Append x @ weight.T + bias."""
        ...

    def norm(self, norm: Norm | None, x: str) -> str:
        """Append a norm."""
        ...


def lower_delta(to: Writing, node: DeltaAttention, x: str, place: int) -> str:
    """Append what layer number `place` of its cache group computes of x; return its value."""
    qkv, z, b, a = _projected(to, node, x)
    where: dict[str, Any] = {"group": node.group, "layer": place}
    conv = Use("weight", (node.conv,), view=FlatRows())
    mixed = to.add("convolve", qkv, name="mixed", uses=(conv,), **where)
    mixed = to.add("activation", mixed, name="mixed", act="silu")
    sizes = (node.keys, node.keys, node.values)
    parts = to.add_many("split", mixed, names=("q", "k", "v"), sizes=sizes)
    q, k, v = (
        to.add("split_heads", part, name=name, heads=heads)
        for part, name, heads in zip(
            parts, "qkv", (node.key_heads, node.key_heads, node.value_heads), strict=True
        )
    )
    uses = (Use("a_log", (node.a_log,)), Use("dt_bias", (node.dt_bias,)))
    gates = to.add_many("delta_gates", a, b, names=("g", "beta"), uses=uses)
    read = to.norm(node.norm, to.add("delta_rule", q, k, v, *gates, name="read", **where))
    z = to.add("split_heads", z, name="z", heads=node.value_heads)
    read = to.add("gate", z, read, name="read", act="silu")
    return to.linear(node.out, to.add("merge_heads", read, name="read"), "attention")


def _projected(to: Writing, node: DeltaAttention, x: str) -> tuple[str, str, str, str]:
    """Return [q | k | v], z, b and a of x."""
    match node.projections:
        case SplitDelta(qkv=qkv, z=z, b=b, a=a):
            return (
                to.linear(qkv, x, "qkv"),
                to.linear(z, x, "z"),
                to.linear(b, x, "b"),
                to.linear(a, x, "a"),
            )
        case GroupedDelta(qkvz=qkvz, ba=ba):
            ratio = node.value_heads // node.key_heads
            values = ratio * node.value_dim
            rows = (node.key_dim, node.key_dim, values, values)
            return (
                _some_rows(to, qkvz, x, "qkv", GroupedRows(rows, (0, 1, 2))),
                _some_rows(to, qkvz, x, "z", GroupedRows(rows, (3,))),
                _some_rows(to, ba, x, "b", GroupedRows((ratio, ratio), (0,))),
                _some_rows(to, ba, x, "a", GroupedRows((ratio, ratio), (1,))),
            )


def _some_rows(to: Writing, linear: Linear, x: str, name: str, view: GroupedRows) -> str:
    return to.add("linear", x, name=name, uses=(Use("weight", (linear.weight,), view=view),))
