"""Consistency of the sizes of towers: patches, clips, mergers and resamplers."""

from __future__ import annotations

from spaninfer_engine.spec.attention_nodes import AxialRope, RaggedAttention
from spaninfer_engine.spec.fit.attention import of_heads
from spaninfer_engine.spec.fit.mlp import of_mlp
from spaninfer_engine.spec.fit.parts import Misfits, of_linear, of_norm, of_weight
from spaninfer_engine.spec.nodes import Decoder, Layer
from spaninfer_engine.spec.tower_nodes import TAPS, AudioTower, Merger, PatchTower, Resampler, Tower
from spaninfer_engine.spec.weight_nodes import Weight


def of_tower(tower: Tower, decoder: Decoder) -> Misfits:
    """Yield what does not fit of a tower whose rows a decoder reads."""
    if tower.width != decoder.hidden:
        yield f"rows of the tower have {tower.width} channels; the decoder has {decoder.hidden}"
    for layer in tower.layers:
        yield from _tower_layer(layer, tower)
    match tower:
        case PatchTower():
            yield from _patch_tower(tower, decoder)
        case AudioTower():
            yield from _audio_tower(tower)


def _audio_tower(tower: AudioTower) -> Misfits:
    hidden = tower.hidden
    for linear, channels in ((tower.conv1, tower.mels), (tower.conv2, hidden)):
        yield from of_weight(linear.weight, hidden, channels, TAPS)
        if linear.bias is not None:
            yield from of_weight(linear.bias, hidden)
    yield from of_weight(tower.positions, tower.max_rows, hidden)
    if not 1 <= tower.pool <= tower.max_rows:
        yield f"{tower.pool} of {tower.max_rows} rows make a token"
    yield from of_norm("norm of the tower", tower.norm, hidden)
    yield from of_linear(tower.projector, tower.width, hidden)
    if tower.extra is not None:
        yield from of_weight(tower.extra, 2, tower.width)


def _patch_tower(tower: PatchTower, decoder: Decoder) -> Misfits:
    frames = (tower.temporal,) if tower.has_frames else ()
    hidden, pixels = tower.hidden, (tower.channels, *frames, tower.patch, tower.patch)
    if len(tower.embedding.weight.shape) == 2:
        pixels = (tower.numbers,)
    yield from of_weight(tower.embedding.weight, hidden, *pixels)
    if tower.embedding.bias is not None:
        yield from of_weight(tower.embedding.bias, hidden)
    if tower.positions is not None:
        rows = tower.positions.square.side**2 + (tower.class_token is not None)
        yield from of_weight(
            tower.positions.table, *_of_one(tower.positions.table, 2), rows, hidden
        )
    if tower.window is not None and (tower.window < tower.merge or tower.window % tower.merge):
        yield f"windows of {tower.window} patches do not hold squares of {tower.merge}"
    if any(_attends_in_windows(layer) for layer in tower.layers) and tower.window is None:
        yield "a tower's layer has windows, and the tower says none"
    if len(tower.deepstack) > len(decoder.layers):
        yield f"{len(tower.deepstack)} deepstack rows join {len(decoder.layers)} layers"
    if isinstance(tower.merger, Resampler):
        yield from _resampler(tower.merger, tower)
    else:
        yield from _merger(tower.merger, tower)
    for _, merger in tower.deepstack:
        yield from _merger(merger, tower)
    if any(not 0 <= index < len(tower.layers) for index, _ in tower.deepstack):
        yield f"deepstack mergers follow layers that are none of {len(tower.layers)}"
    if tower.tile is not None and (tower.temporal > 1 or tower.tile % tower.merge):
        yield f"tiles of {tower.tile} patches and 1 frame make no rows of {tower.merge} squared"
    if tower.extra is not None:
        yield from of_weight(tower.extra, *tower.extra.shape[:-1], tower.width)
    if tower.class_token is not None:
        yield from of_weight(tower.class_token, *_of_one(tower.class_token, 1), hidden)
        if tower.tile is None or tower.window is not None or isinstance(tower.merger, Resampler):
            yield "a class token comes behind tiles, without windows and queries"
    yield from of_norm("norm in front of the tower", tower.pre_norm, hidden)
    yield from of_norm("norm of the tower", tower.norm, hidden)


def _of_one(weight: Weight, axes: int) -> tuple[int, ...]:
    """Return axes of one in front of a weight's last axes, as many as it has."""
    return (1,) * (len(weight.shape) - axes)


def _tower_layer(layer: Layer, tower: Tower) -> Misfits:
    yield from of_norm("norm of a tower's layer", layer.norms.attention_pre, tower.hidden)
    yield from of_norm("norm of a tower's layer", layer.norms.mlp_pre, tower.hidden)
    attention = layer.attention
    if not isinstance(attention, RaggedAttention):
        yield "a tower's layer keeps keys"
        return
    yield from of_heads(attention, tower.hidden)
    match attention.positions:
        case AxialRope(dim=dim) if dim != attention.heads.dim or dim % 4:
            yield f"{dim} of {attention.heads.dim} channels of a head turn by row and column"
    yield from of_mlp(layer.mlp, tower.hidden)


def _attends_in_windows(layer: Layer) -> bool:
    return isinstance(layer.attention, RaggedAttention) and layer.attention.in_windows


def _merger(merger: Merger, tower: PatchTower) -> Misfits:
    wide = tower.hidden if merger.is_mean else merger.count * tower.hidden
    if merger.join is not None:
        yield from of_linear(merger.join, tower.hidden, wide)
        wide = tower.hidden
    if merger.count != tower.merge**2:
        yield f"a token is made of {merger.count} patches, and of {tower.merge} squared"
    yield from of_norm("norm of a merger", merger.norm, wide if merger.norm_after else tower.hidden)
    inner = wide
    if merger.up is not None:
        inner = merger.up.weight.shape[0]
        yield from of_linear(merger.up, inner, wide)
        inner //= 2 if merger.is_gated else 1
    if merger.project is None:
        yield from of_linear(merger.down, tower.width, inner)
        return
    out = merger.down.weight.shape[0]
    yield from of_linear(merger.down, out, inner)
    yield from of_linear(merger.project, tower.width, out)


def _resampler(node: Resampler, tower: PatchTower) -> Misfits:
    width, count = tower.width, node.count
    if tower.merge != 1 or tower.deepstack:
        yield "a resampler reads patches, and the tower merges them, or has deepstack rows"
    if node.positions.square.side**2 != count or width % node.heads:
        yield f"{count} queries of {width} channels: no square, or no {node.heads} heads"
    yield from of_weight(node.query, count, width)
    yield from of_weight(node.positions.table, count, width)
    if node.kv is not None:
        yield from of_linear(node.kv, width, tower.hidden)
    elif tower.hidden != width:
        yield f"a resampler of {width} channels reads {tower.hidden}"
    for norm in (node.q_norm, node.kv_norm, node.norm):
        yield from of_norm("norm of a resampler", norm, width)
    yield from of_linear(node.qkv.linear, 3 * width, width)
    yield from of_linear(node.out, width, width)
    yield from of_linear(node.down, width, width)
