"""Lowering of towers: the nodes of spec/tower_nodes.py become a program of operators.

T are patches, or rows of a clip, in an order in which those of a frame, of a window and of a token
are neighbours; W are the rows that the text model takes. The result has them side by side with
those of deepstack. What an audio tower computes frame by frame is a program of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from spaninfer_engine.ops.bound import EXTRA, STEM, TOWER, ProgramKey, Result
from spaninfer_engine.ops.operation import (
    FlatRows,
    JoinedRows,
    LastAxis,
    OneRow,
    PartRows,
    TapRows,
    Use,
)
from spaninfer_engine.program.builder import ProgramBuilder
from spaninfer_engine.program.lower import lower_layer
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


def _program(program: ProgramBuilder, result: str) -> Program:
    return Program(tuple(program.operations), result, (), (), Result.FEATURES)


# ---- images and video ----------------------------------------------------------------------------


def _patches(tower: PatchTower) -> Program:
    program = ProgramBuilder(tower.ropes, groups=())
    features = program.add("features", name="features")
    places = None if tower.positions is None else _places(program, tower, tower.positions)
    embedding, token = tower.embedding, tower.class_token
    bias = None if token is None else embedding.bias
    x = _product(
        program, embedding if bias is None else Linear(embedding.weight), FlatRows(), features
    )
    if places is not None:
        x = program.add("add", x, places, name="x", scale=1.0)
    for square, row in enumerate((token, bias), len(tower.squares)):
        if row is not None:  # the class token alone, or the patches alone
            uses = (Use("table", (row,), view=OneRow()),)
            added = program.add("blended_positions", name="row", uses=uses, square=square)
            x = program.add("add", x, added, name="x", scale=1.0)
    x = program.norm(tower.pre_norm, x)
    mergers, rows = dict(tower.deepstack), list[str]()
    for index, layer in enumerate(tower.layers):
        program.layer = index
        x = lower_layer(program, layer, x)
        if index in mergers:
            rows.append(_merged(program, mergers[index], x))
    program.layer = None
    x = program.norm(tower.norm, x)
    if isinstance(tower.merger, Resampler):
        result = _resampled(program, tower, tower.merger, x)
    else:
        result = _merged(program, tower.merger, x)
    for deep in rows:
        result = program.add("concat", result, deep, name="rows")
    return _program(program, result)


def _product(
    program: ProgramBuilder, linear: Linear, view: FlatRows | TapRows | JoinedRows, x: str
) -> str:
    """Append a GEMM with rows that hold all that a place sees: a convolution, as a rule."""
    weight = Use("weight", (linear.weight,), view=view)
    bias = () if linear.bias is None else (Use("bias", (linear.bias,)),)
    return program.add("linear", x, name="x", uses=(weight, *bias))


def _places(program: ProgramBuilder, tower: PatchTower, positions: PatchPositions) -> str:
    view = LastAxis() if len(positions.table.shape) > 2 else None
    uses = (Use("table", (positions.table,), view=view),)
    square = tower.squares.index(positions.square)
    return program.add("blended_positions", name="places", uses=uses, square=square)


def _resampled(program: ProgramBuilder, tower: PatchTower, node: Resampler, x: str) -> str:
    """Append what queries read of the patches of their frame: W rows, as many for each frame."""
    if node.kv is not None:
        x = program.linear(node.kv, x, "kv")
    x = program.norm(node.kv_norm, x)
    places = _places(program, tower, node.positions)
    keys = program.add("add", x, places, name="keys", scale=1.0)
    query, table = (
        program.add("learned_queries", name="query", uses=(Use("table", (each,)),))
        for each in (node.query, node.positions.table)
    )
    query = program.add("add", program.norm(node.q_norm, query), table, name="query", scale=1.0)
    q, k, v = (
        program.add("split_heads", _part(program, node, part, y), name="heads", heads=node.heads)
        for part, y in enumerate((query, keys, x))
    )
    scale = (tower.width // node.heads) ** -0.5
    read = program.add("cross_attend", q, k, v, name="read", scale=scale)
    out = program.linear(node.out, program.add("merge_heads", read, name="read"), "rows")
    return program.linear(node.down, program.norm(node.norm, out), "rows")


def _part(program: ProgramBuilder, node: Resampler, part: int, x: str) -> str:
    """Append the projection to queries, keys or values: 0, 1 or 2."""
    view, linear = PartRows(part, 3), node.qkv.linear
    assert linear.bias is not None
    uses = (Use("weight", (linear.weight,), view=view), Use("bias", (linear.bias,), view=view))
    return program.add("linear", x, name="qkv", uses=uses)


def _merged(program: ProgramBuilder, merger: Merger, x: str) -> str:
    if not merger.norm_after:
        x = program.norm(merger.norm, x)
    if merger.is_mean:
        x = _mean(program, x, merger.count, merger.down.weight.shape[0])
    elif merger.count > 1:
        x = program.add("join_rows", x, name="joined", count=merger.count)
    if merger.join is not None:
        x = _product(program, merger.join, JoinedRows(merger.count), x)
    if merger.norm_after:
        x = program.norm(merger.norm, x)
    if merger.up is not None:
        up = program.linear(merger.up, x, "up")
        if merger.is_gated:
            sizes = (merger.up.weight.shape[0] // 2,) * 2
            up, gate = program.add_many("split", up, names=("up", "gate"), sizes=sizes)
            x = program.add("gate", gate, up, name="inner", act=merger.act)
        else:
            x = program.add("activation", up, name="inner", act=merger.act)
    rows = program.linear(merger.down, x, "rows")
    if merger.project is None:
        return rows
    rows = program.add("activation", rows, name="rows", act=merger.act)
    return program.linear(merger.project, rows, "rows")


def _mean(program: ProgramBuilder, x: str, count: int, channels: int) -> str:
    """Append the mean of neighbouring rows: their sum by halves, as long as there are any."""
    if count == 1:
        return x
    x = program.add("join_rows", x, name="joined", count=count)
    left = count
    while left > 1:
        parts = 2 if left % 2 == 0 else left
        left //= parts
        sizes = (left * channels,) * parts
        x, *others = program.add_many("split", x, names=("row",) * parts, sizes=sizes)
        for other in others:
            x = program.add("add", x, other, name="sum", scale=1.0)
    return program.add("scale", x, name="mean", factor=1 / count)


def _extra(tower: Tower) -> Program:
    """Return the rows that stand between those of patches or clips."""
    assert tower.extra is not None
    program = ProgramBuilder((), groups=())
    view = OneRow() if len(tower.extra.shape) == 1 else None
    uses = (Use("table", (tower.extra,), view=view),)
    return _program(program, program.add("learned_positions", name="rows", uses=uses, offset=0))


# ---- audio ---------------------------------------------------------------------------------------


def _stem(tower: AudioTower) -> Program:
    """Return the first convolution: a row per frame."""
    program = ProgramBuilder((), groups=())
    x = program.add("features", name="features")
    x = _product(program, tower.conv1, TapRows(), x)
    return _program(program, program.add("activation", x, name="x", act=tower.act))


def _clips(tower: AudioTower) -> Program:
    """Return what follows: the second convolution of rows that hold three frames, and layers."""
    program = ProgramBuilder(tower.ropes, groups=())
    x = program.add("features", name="features")
    x = _product(program, tower.conv2, TapRows(), x)
    x = program.add("activation", x, name="x", act=tower.act)
    uses = (Use("table", (tower.positions,)),)
    places = program.add("learned_positions", name="places", uses=uses, offset=0)
    x = program.add("add", x, places, name="x", scale=1.0)
    for index, layer in enumerate(tower.layers):
        program.layer = index
        x = lower_layer(program, layer, x)
    program.layer = None
    x = program.norm(tower.norm, _mean(program, x, tower.pool, tower.hidden))
    return _program(program, program.linear(tower.projector, x, "rows"))
