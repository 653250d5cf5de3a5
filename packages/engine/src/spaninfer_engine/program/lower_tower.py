"""Lowering of towers: the nodes of spec/tower_nodes.py become a program of operators.

T are patches, or rows of a clip, in an order in which those of a frame, of a window and of a token
are neighbours; W are the rows that the text model takes. The result has them side by side with
those of deepstack. What an audio tower computes frame by frame is a program of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from spaninfer_engine.ops.bound import EXTRA, STEM, TOWER, ProgramKey, Result
from spaninfer_engine.ops.operation import FlatRows, OneRow, PartRows, TapRows, Use
from spaninfer_engine.program.lower import Lowering
from spaninfer_engine.program.program import Program
from spaninfer_engine.spec.tower_nodes import (
    AudioTower,
    Merger,
    PatchPositions,
    PatchTower,
    Resampler,
    Tower,
)
from spaninfer_engine.spec.weight_nodes import Linear


def lower_tower(tower: Tower) -> Mapping[ProgramKey, Program]:
    """Return the programs that make rows for tokens out of the features of a step."""
    extra = {} if tower.extra is None else {EXTRA: _extra(tower)}
    match tower:
        case PatchTower():
            return {TOWER: _patches(tower), **extra}
        case AudioTower():
            return {STEM: _stem(tower), TOWER: _clips(tower), **extra}


def _program(lowering: Lowering, result: str) -> Program:
    return Program(tuple(lowering.operations), result, (), (), Result.FEATURES)


# ---- images and video ----------------------------------------------------------------------------


def _patches(tower: PatchTower) -> Program:
    lowering = Lowering(tower.ropes, groups=())
    features = lowering.add("features", name="features")
    places = None if tower.positions is None else _places(lowering, tower, tower.positions)
    x = _product(lowering, tower.embedding, FlatRows(), features)
    if places is not None:
        x = lowering.add("add", x, places, name="x", scale=1.0)
    x = lowering.norm(tower.pre_norm, x)
    mergers, rows = dict(tower.deepstack), list[str]()
    for index, layer in enumerate(tower.layers):
        lowering.layer = index
        x = lowering.node(layer, x)
        if index in mergers:
            rows.append(_merged(lowering, mergers[index], x))
    lowering.layer = None
    x = lowering.norm(tower.norm, x)
    if isinstance(tower.merger, Resampler):
        result = _resampled(lowering, tower, tower.merger, x)
    else:
        result = _merged(lowering, tower.merger, x)
    for deep in rows:
        result = lowering.add("concat", result, deep, name="rows")
    return _program(lowering, result)


def _product(lowering: Lowering, linear: Linear, view: FlatRows | TapRows, x: str) -> str:
    """Append a convolution as a product with rows that hold all that a place sees."""
    weight = Use("weight", (linear.weight,), view=view)
    bias = () if linear.bias is None else (Use("bias", (linear.bias,)),)
    return lowering.add("linear", x, name="x", uses=(weight, *bias))


def _places(lowering: Lowering, tower: PatchTower, positions: PatchPositions) -> str:
    uses = (Use("table", (positions.table,)),)
    square = tower.squares.index(positions.square)
    return lowering.add("blended_positions", name="places", uses=uses, square=square)


def _resampled(lowering: Lowering, tower: PatchTower, node: Resampler, x: str) -> str:
    """Append what queries read of the patches of their frame: W rows, as many for each frame."""
    if node.kv is not None:
        x = lowering.linear(node.kv, x, "kv")
    x = lowering.norm(node.kv_norm, x)
    places = _places(lowering, tower, node.positions)
    keys = lowering.add("add", x, places, name="keys", scale=1.0)
    query, table = (
        lowering.add("learned_queries", name="query", uses=(Use("table", (each,)),))
        for each in (node.query, node.positions.table)
    )
    query = lowering.add("add", lowering.norm(node.q_norm, query), table, name="query", scale=1.0)
    q, k, v = (
        lowering.add("split_heads", _part(lowering, node, part, y), name="heads", heads=node.heads)
        for part, y in enumerate((query, keys, x))
    )
    scale = (tower.width // node.heads) ** -0.5
    read = lowering.add("cross_attend", q, k, v, name="read", scale=scale)
    out = lowering.linear(node.out, lowering.add("merge_heads", read, name="read"), "rows")
    return lowering.linear(node.down, lowering.norm(node.norm, out), "rows")


def _part(lowering: Lowering, node: Resampler, part: int, x: str) -> str:
    """Append the projection to queries, keys or values: 0, 1 or 2."""
    view, linear = PartRows(part, 3), node.qkv.linear
    assert linear.bias is not None
    uses = (Use("weight", (linear.weight,), view=view), Use("bias", (linear.bias,), view=view))
    return lowering.add("linear", x, name="qkv", uses=uses)


def _merged(lowering: Lowering, merger: Merger, x: str) -> str:
    if not merger.norm_after:
        x = lowering.norm(merger.norm, x)
    if merger.is_mean:
        x = _mean(lowering, x, merger.count, merger.down.weight.shape[0])
    elif merger.count > 1:
        x = lowering.add("join_rows", x, name="joined", count=merger.count)
    if merger.norm_after:
        x = lowering.norm(merger.norm, x)
    if merger.up is not None:
        up = lowering.linear(merger.up, x, "up")
        x = lowering.add("activation", up, name="inner", act=merger.act)
    return lowering.linear(merger.down, x, "rows")


def _mean(lowering: Lowering, x: str, count: int, channels: int) -> str:
    """Append the mean of neighbouring rows: their sum by halves, as long as there are any."""
    if count == 1:
        return x
    x = lowering.add("join_rows", x, name="joined", count=count)
    left = count
    while left > 1:
        parts = 2 if left % 2 == 0 else left
        left //= parts
        sizes = (left * channels,) * parts
        x, *others = lowering.add_many("split", x, names=("row",) * parts, sizes=sizes)
        for other in others:
            x = lowering.add("add", x, other, name="sum", scale=1.0)
    return lowering.add("scale", x, name="mean", factor=1 / count)


def _extra(tower: Tower) -> Program:
    """Return the rows that stand between those of patches or clips."""
    assert tower.extra is not None
    lowering = Lowering((), groups=())
    view = OneRow() if len(tower.extra.shape) == 1 else None
    uses = (Use("table", (tower.extra,), view=view),)
    return _program(lowering, lowering.add("learned_positions", name="rows", uses=uses, offset=0))


# ---- audio ---------------------------------------------------------------------------------------


def _stem(tower: AudioTower) -> Program:
    """Return the first convolution: a row per frame."""
    lowering = Lowering((), groups=())
    x = lowering.add("features", name="features")
    x = _product(lowering, tower.conv1, TapRows(), x)
    return _program(lowering, lowering.add("activation", x, name="x", act=tower.act))


def _clips(tower: AudioTower) -> Program:
    """Return what follows: the second convolution of rows that hold three frames, and layers."""
    lowering = Lowering(tower.ropes, groups=())
    x = lowering.add("features", name="features")
    x = _product(lowering, tower.conv2, TapRows(), x)
    x = lowering.add("activation", x, name="x", act=tower.act)
    uses = (Use("table", (tower.positions,)),)
    places = lowering.add("learned_positions", name="places", uses=uses, offset=0)
    x = lowering.add("add", x, places, name="x", scale=1.0)
    for index, layer in enumerate(tower.layers):
        lowering.layer = index
        x = lowering.node(layer, x)
    lowering.layer = None
    x = lowering.norm(tower.norm, _mean(lowering, x, tower.pool, tower.hidden))
    return _program(lowering, lowering.linear(tower.projector, x, "rows"))
