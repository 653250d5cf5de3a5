"""Consistency of a tree's sizes, checked once: kernels take their sizes from it, unchecked.

By construction most of this holds for every spec. It is asked of every tree all the same: what does
not hold would have a compiled kernel read and write beside its buffers.
"""

from __future__ import annotations

from collections.abc import Iterator

from spaninfer_engine.spec.attention_nodes import (
    Attention,
    AxialRope,
    FusedQkv,
    Indexer,
    LowRank,
    MlaAttention,
    RaggedAttention,
    Rope,
    SplitQkv,
)
from spaninfer_engine.spec.delta_nodes import DeltaAttention
from spaninfer_engine.spec.fit_delta import delta_misfits
from spaninfer_engine.spec.mlp_nodes import (
    EachExpert,
    FusedGatedMLP,
    GatedMLP,
    PlainMLP,
    RoutedMLP,
    Scores,
    StackedExperts,
)
from spaninfer_engine.spec.nodes import (
    CacheGroup,
    Decoder,
    Embedding,
    Head,
    Layer,
    Learned,
    Model,
    Sinusoidal,
)
from spaninfer_engine.spec.tower_nodes import (
    TAPS,
    AudioTower,
    Merger,
    PatchTower,
    Resampler,
    Tower,
)
from spaninfer_engine.spec.weight_nodes import Linear, Norm, Ones, Weight

Misfits = Iterator[str]


def misfits(model: Model) -> Misfits:
    """Yield a sentence for every size, index or bound that does not fit the tensor it is about."""
    yield from _embedding(model.embedding, model)
    for layer in model.layers:
        yield from _layer(layer, model)
    yield from _norm("final norm", model.norm, model.hidden)
    if isinstance(model, Decoder):
        yield from _head(model.head, model)
        for tower in model.towers:
            yield from _tower(tower, model)


def _is(weight: Weight | Ones, *shape: int) -> Misfits:
    if weight.shape != shape:
        yield f"{weight.name} is {list(weight.shape)}, and what reads it takes {list(shape)}"


def _linear(linear: Linear, rows: int, columns: int) -> Misfits:
    yield from _is(linear.weight, *((columns, rows) if linear.transposed else (rows, columns)))
    if linear.bias is not None:
        yield from _is(linear.bias, rows)


def _norm(what: str, norm: Norm | None, channels: int) -> Misfits:
    if norm is None:
        return
    yield from _is(norm.weight, channels)
    if norm.bias is not None:
        yield from _is(norm.bias, channels)
    if not norm.eps > 0:
        yield f"the eps of the {what} is {norm.eps}; it must lie above 0"


def _embedding(node: Embedding, model: Model) -> Misfits:
    width = model.hidden if node.project is None else node.project.weight.shape[1]
    yield from _is(node.table, model.vocab, width)
    if node.project is not None:
        yield from _linear(node.project, model.hidden, width)
    match node.positions:
        case Learned(table=table, offset=offset):
            yield from _is(table, table.shape[0], model.hidden)
            if offset < 0 or table.shape[0] < model.max_len + offset:
                yield (
                    f"{table.name} has {table.shape[0]} rows; {model.max_len} positions from row "
                    f"{offset} on are read"
                )
        case Sinusoidal(dim=dim, offset=offset) if dim != model.hidden or dim < 4 or offset < 0:
            yield f"sines of {dim} channels from {offset} on are added to {model.hidden}"
    if node.types is not None:
        yield from _is(node.types, max(node.types.shape[0], 1), model.hidden)
    yield from _norm("norm of the embedding", node.norm, model.hidden)


def _tower(tower: Tower, decoder: Decoder) -> Misfits:
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
        yield from _is(linear.weight, hidden, channels, TAPS)
        if linear.bias is not None:
            yield from _is(linear.bias, hidden)
    yield from _is(tower.positions, tower.max_rows, hidden)
    if not 1 <= tower.pool <= tower.max_rows:
        yield f"{tower.pool} of {tower.max_rows} rows make a token"
    yield from _norm("norm of the tower", tower.norm, hidden)
    yield from _linear(tower.projector, tower.width, hidden)
    if tower.extra is not None:
        yield from _is(tower.extra, 2, tower.width)


def _patch_tower(tower: PatchTower, decoder: Decoder) -> Misfits:
    frames = () if tower.tile is not None else (tower.temporal,)
    hidden, pixels = tower.hidden, (tower.channels, *frames, tower.patch, tower.patch)
    yield from _is(tower.embedding.weight, hidden, *pixels)
    if tower.embedding.bias is not None:
        yield from _is(tower.embedding.bias, hidden)
    if tower.positions is not None:
        yield from _is(tower.positions.table, tower.positions.square.side**2, hidden)
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
        yield from _is(tower.extra, *tower.extra.shape[:-1], tower.width)
    yield from _norm("norm in front of the tower", tower.pre_norm, hidden)
    yield from _norm("norm of the tower", tower.norm, hidden)


def _tower_layer(layer: Layer, tower: Tower) -> Misfits:
    yield from _norm("norm of a tower's layer", layer.norms.attention_pre, tower.hidden)
    yield from _norm("norm of a tower's layer", layer.norms.mlp_pre, tower.hidden)
    attention = layer.attention
    if not isinstance(attention, RaggedAttention):
        yield "a tower's layer keeps keys"
        return
    yield from _heads(attention, tower.hidden)
    match attention.positions:
        case AxialRope(dim=dim) if dim != attention.heads.dim or dim % 4:
            yield f"{dim} of {attention.heads.dim} channels of a head turn by row and column"
    yield from _mlp(layer.mlp, tower.hidden)


def _attends_in_windows(layer: Layer) -> bool:
    return isinstance(layer.attention, RaggedAttention) and layer.attention.in_windows


def _merger(merger: Merger, tower: PatchTower) -> Misfits:
    wide = tower.hidden if merger.is_mean else merger.count * tower.hidden
    if merger.count != tower.merge**2:
        yield f"a token is made of {merger.count} patches, and of {tower.merge} squared"
    yield from _norm("norm of a merger", merger.norm, wide if merger.norm_after else tower.hidden)
    inner = wide
    if merger.up is not None:
        inner = merger.up.weight.shape[0]
        yield from _linear(merger.up, inner, wide)
    yield from _linear(merger.down, tower.width, inner)


def _resampler(node: Resampler, tower: PatchTower) -> Misfits:
    width, count = tower.width, node.count
    if tower.merge != 1 or tower.deepstack:
        yield "a resampler reads patches, and the tower merges them, or has deepstack rows"
    if node.positions.square.side**2 != count or width % node.heads:
        yield f"{count} queries of {width} channels: no square, or no {node.heads} heads"
    yield from _is(node.query, count, width)
    yield from _is(node.positions.table, count, width)
    if node.kv is not None:
        yield from _linear(node.kv, width, tower.hidden)
    elif tower.hidden != width:
        yield f"a resampler of {width} channels reads {tower.hidden}"
    for norm in (node.q_norm, node.kv_norm, node.norm):
        yield from _norm("norm of a resampler", norm, width)
    yield from _linear(node.qkv.linear, 3 * width, width)
    yield from _linear(node.out, width, width)
    yield from _linear(node.down, width, width)


def _head(node: Head, decoder: Decoder) -> Misfits:
    width = decoder.hidden if node.project is None else node.project.weight.shape[0]
    yield from _linear(node.linear, decoder.vocab, width)
    if node.project is not None:
        yield from _linear(node.project, width, decoder.hidden)


def _layer(layer: Layer, model: Model) -> Misfits:
    norms = layer.norms
    for norm in (norms.attention_pre, norms.attention_post, norms.attention_after,
                 norms.mlp_pre, norms.mlp_post, norms.mlp_after):  # fmt: skip
        yield from _norm("norm of a layer", norm, model.hidden)
    yield from _attention(layer.attention, model)
    yield from _mlp(layer.mlp, model.hidden)


def _attention(
    node: Attention | MlaAttention | DeltaAttention | RaggedAttention, model: Model
) -> Misfits:
    if isinstance(node, RaggedAttention):
        yield from _heads(node, model.hidden)
    elif not 0 <= node.group < len(model.groups):
        yield f"a layer is in cache group {node.group} of {len(model.groups)}"
    elif isinstance(node, MlaAttention):
        yield from _latent(node, model.groups[node.group], model.hidden)
        if isinstance(node.indexer, Indexer):
            yield from _indexer(node.indexer, node, model.groups)
    elif isinstance(node, DeltaAttention):
        yield from delta_misfits(node, model.groups[node.group], model.hidden)
    else:
        yield from _grouped(node, model.groups[node.group], model.hidden)


def _heads(node: Attention | RaggedAttention, hidden: int) -> Misfits:
    heads, dim = node.heads, node.heads.dim
    if min(heads.query, heads.kv, dim) < 1 or heads.query % heads.kv:
        yield f"{heads.query} heads of {dim} channels do not share {heads.kv} keys evenly"
        return
    q, kv = heads.query * dim, heads.kv * dim
    match node.qkv:
        case SplitQkv(q=query, k=key, v=value):
            gates = isinstance(node, Attention) and node.gated
            for linear, rows in ((query, 2 * q if gates else q), (key, kv), (value, kv)):
                yield from _linear(linear, rows, hidden)
        case FusedQkv(linear=linear):
            yield from _linear(linear, q + 2 * kv, hidden)
    yield from _linear(node.out, hidden, q)
    if node.norms is not None:
        whole = node.norms.joint
        yield from _norm("norm of queries", node.norms.q, q if whole else dim)
        yield from _norm("norm of keys", node.norms.k, kv if whole else dim)


def _grouped(node: Attention, group: CacheGroup, hidden: int) -> Misfits:
    heads, dim = node.heads, node.heads.dim
    yield from _heads(node, hidden)
    if (group.kv_heads, group.key_size, group.value_size) != (heads.kv, dim, dim):
        yield f"cache group {group.index} does not hold {heads.kv} keys of {dim} channels"
    if group.window != node.window or (node.window is not None and node.window < 1):
        yield f"a window of {node.window} is kept as {group.window}"
    if isinstance(node.positions, Rope):
        yield from _rope(node.positions, dim)
    if node.sinks is not None:
        yield from _is(node.sinks, heads.query)
    if node.logn_base is not None and node.logn_base < 2:
        yield f"the logarithm's base is {node.logn_base}; it takes 2 or more"
    if (growth := node.llama4_scale) is not None and (growth.length < 1 or growth.offset < 0):
        yield f"a length of {growth.length} and an offset of {growth.offset}: 1 and 0 at least"


def _latent(node: MlaAttention, group: CacheGroup, hidden: int) -> Misfits:
    per_head, heads = node.nope + node.rotated, node.heads
    match node.q:
        case Linear():
            yield from _linear(node.q, heads * per_head, hidden)
        case LowRank(down=down, norm=norm, up=up):
            width = down.weight.shape[0]
            yield from _linear(down, width, hidden)
            yield from _norm("norm of the query's latent", norm, width)
            yield from _linear(up, heads * per_head, width)
    yield from _linear(node.kv_down, node.latent + node.rotated, hidden)
    yield from _norm("norm of the latent", node.kv_norm, node.latent)
    yield from _linear(node.kv_up, heads * (node.nope + node.value), node.latent)
    yield from _linear(node.out, hidden, heads * node.value)
    yield from _rope(node.rope, node.rotated)
    if _kept_in(group) != (1, node.latent + node.rotated, node.latent, True):
        yield f"cache group {group.index} does not hold latents of {node.latent} channels"


def _indexer(node: Indexer, attention: MlaAttention, groups: tuple[CacheGroup, ...]) -> Misfits:
    hidden = attention.kv_down.weight.shape[1]
    low = attention.q.up.weight.shape[1] if isinstance(attention.q, LowRank) else hidden
    yield from _linear(node.q, node.heads * node.dim, low)
    yield from _linear(node.k, node.dim, hidden)
    yield from _norm("norm of an indexer's keys", node.k_norm, node.dim)
    yield from _linear(node.weights, node.heads, hidden)
    yield from _rope(attention.rope, node.dim)
    if min(node.heads, node.dim, node.top_k) < 1:
        yield f"an indexer of {node.heads} heads of {node.dim} channels selects {node.top_k} keys"
    if not 0 <= node.group < len(groups):
        yield f"an indexer is in cache group {node.group} of {len(groups)}"
    elif _kept_in(groups[node.group]) != (1, node.dim, node.dim, True):
        yield f"cache group {node.group} does not hold keys of {node.dim} channels"


def _kept_in(group: CacheGroup) -> tuple[int, int, int, bool]:
    return group.kv_heads, group.key_size, group.value_size, group.values_in_keys


def _rope(rope: Rope, size: int) -> Misfits:
    rule = rope.frequencies
    if not 2 <= rule.dim <= size or rule.dim % 2:
        yield f"{rule.dim} of {size} channels of a head are rotated"
    if rope.sections and (min(rope.sections) < 0 or sum(rope.sections) != rule.dim // 2):
        yield f"sections {list(rope.sections)} are not {rule.dim // 2} frequencies"
    if rule.kind == "longrope" and {len(rule.short_factors), len(rule.long_factors)} != {
        rule.dim // 2
    }:
        yield f"factors are not as many as frequencies, {rule.dim // 2}"


def _mlp(node: GatedMLP | FusedGatedMLP | PlainMLP | RoutedMLP, hidden: int) -> Misfits:
    match node:
        case GatedMLP(gate=gate, up=up, down=down):
            inner = down.weight.shape[1]
            yield from _linear(gate, inner, hidden)
            yield from _linear(up, inner, hidden)
            yield from _linear(down, hidden, inner)
        case FusedGatedMLP(gate_up=gate_up, down=down):
            yield from _linear(gate_up, 2 * down.weight.shape[1], hidden)
            yield from _linear(down, hidden, down.weight.shape[1])
        case PlainMLP(up=up, down=down):
            yield from _linear(up, down.weight.shape[1], hidden)
            yield from _linear(down, hidden, down.weight.shape[1])
        case RoutedMLP():
            yield from _routed(node, hidden)


def _routed(node: RoutedMLP, hidden: int) -> Misfits:
    experts = node.router.weight.shape[0]
    yield from _linear(node.router, experts, hidden)
    if node.correction is not None:
        leading = node.correction.shape[:-1]
        yield from _is(node.correction, *((1, experts) if leading else (experts,)))
    yield from _scores(node.scores, experts)
    match node.experts:
        case EachExpert(gate=gate, up=up, down=down):
            if not len(gate) == len(up) == len(down) == experts:
                counts = f"{len(gate)}, {len(up)} and {len(down)}"
                yield f"{counts} weights are those of {experts} experts"
                return
            inner = down[0].shape[1]
            for weight in (*gate, *up):
                yield from _is(weight, inner, hidden)
            for weight in down:
                yield from _is(weight, hidden, inner)
        case StackedExperts(gate_up=both, down=down_all, layout="oi"):
            yield from _is(both, experts, 2 * down_all.shape[2], hidden)
            yield from _is(down_all, experts, hidden, down_all.shape[2])
        case StackedExperts(gate_up=both, down=down_all):
            yield from _is(both, experts, hidden, 2 * down_all.shape[1])
            yield from _is(down_all, experts, down_all.shape[1], hidden)
    if isinstance(node.experts, StackedExperts):
        yield from _expert_biases(node.experts, experts, hidden)
    if node.input_scaled and node.scores.top_k != 1:
        yield f"one expert's share can scale its input, and {node.scores.top_k} are chosen"
    if node.shared is not None:
        yield from _mlp(node.shared, hidden)
    if node.shared_gate is not None:
        yield from _linear(node.shared_gate, 1, hidden)


def _expert_biases(node: StackedExperts, experts: int, hidden: int) -> Misfits:
    inner = node.down.shape[2 if node.layout == "oi" else 1]
    if node.gate_up_bias is not None:
        yield from _is(node.gate_up_bias, experts, 2 * inner)
    if node.down_bias is not None:
        yield from _is(node.down_bias, experts, hidden)


def _scores(scores: Scores, experts: int) -> Misfits:
    if not 1 <= scores.groups <= experts or experts % scores.groups:
        yield f"{experts} experts do not make {scores.groups} groups"
        return
    size = experts // scores.groups
    if not 1 <= scores.group_topk <= scores.groups:
        yield f"{scores.group_topk} of {scores.groups} groups cannot be chosen"
    if not 1 <= scores.top_k <= scores.group_topk * size:
        yield f"{scores.top_k} of {scores.group_topk * size} experts cannot be chosen"
    if scores.groups > 1 and scores.group_score == "top2" and size < 2:
        yield f"groups of {size} expert have no two best"
