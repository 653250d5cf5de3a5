"""Lowering of towers: the nodes of spec/tower_nodes.py become a program of operators.

T are patches, in an order in which those of a frame, of a window and of a token are neighbours; W
are the rows that the text model takes. The result has them side by side with those of deepstack.
"""

from __future__ import annotations

from spaninfer_engine.ops.bound import Result
from spaninfer_engine.ops.operation import FlatRows, Use
from spaninfer_engine.program.lower import Lowering
from spaninfer_engine.program.program import Program
from spaninfer_engine.spec.nodes import Linear
from spaninfer_engine.spec.tower_nodes import Merger, PatchTower, Tower


def lower_tower(tower: Tower) -> Program:
    """Return the program that makes rows for tokens out of the features of a step."""
    lowering = Lowering(tower.ropes, groups=())
    features = lowering.add("features", name="features")
    places = _places(lowering, tower)
    x = _embedded(lowering, tower.embedding, features)
    if places is not None:
        x = lowering.add("add", x, places, name="x", scale=1.0)
    mergers, rows = dict(tower.deepstack), list[str]()
    for index, layer in enumerate(tower.layers):
        lowering.layer = index
        x = lowering.node(layer, x)
        if index in mergers:
            rows.append(_merged(lowering, mergers[index], x))
    lowering.layer = None
    result = _merged(lowering, tower.merger, lowering.norm(tower.norm, x))
    for deep in rows:
        result = lowering.add("concat", result, deep, name="rows")
    return Program(tuple(lowering.operations), result, (), (), Result.FEATURES)


def _embedded(lowering: Lowering, linear: Linear, x: str) -> str:
    """Append the patch embedding: a convolution whose places do not overlap is a product."""
    weight = Use("weight", (linear.weight,), view=FlatRows())
    bias = () if linear.bias is None else (Use("bias", (linear.bias,)),)
    return lowering.add("linear", x, name="x", uses=(weight, *bias))


def _places(lowering: Lowering, tower: PatchTower) -> str | None:
    if tower.positions is None:
        return None
    uses = (Use("table", (tower.positions.table,)),)
    return lowering.add("blended_positions", name="places", uses=uses)


def _merged(lowering: Lowering, merger: Merger, x: str) -> str:
    if not merger.norm_after:
        x = lowering.norm(merger.norm, x)
    x = lowering.add("join_rows", x, name="joined", count=merger.count)
    if merger.norm_after:
        x = lowering.norm(merger.norm, x)
    inner = lowering.add(
        "activation", lowering.linear(merger.up, x, "up"), name="inner", act=merger.act
    )
    return lowering.linear(merger.down, inner, "rows")
