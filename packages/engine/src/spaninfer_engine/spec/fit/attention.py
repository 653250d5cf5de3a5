"""Consistency of the sizes of attention: heads, latents, indexers, rotary embeddings."""

from __future__ import annotations

from spaninfer_engine.spec.attention_nodes import (
    Attention,
    FusedQkv,
    Indexer,
    LowRank,
    MlaAttention,
    RaggedAttention,
    Rope,
    SplitQkv,
)
from spaninfer_engine.spec.fit.parts import Misfits, of_linear, of_norm, of_weight
from spaninfer_engine.spec.nodes import CacheGroup
from spaninfer_engine.spec.weight_nodes import Linear


def of_heads(node: Attention | RaggedAttention, hidden: int) -> Misfits:
    """Yield what does not fit of queries, keys, values and what they become."""
    heads, dim = node.heads, node.heads.dim
    if min(heads.query, heads.kv, dim) < 1 or heads.query % heads.kv:
        yield f"{heads.query} heads of {dim} channels do not share {heads.kv} keys evenly"
        return
    q, kv = heads.query * dim, heads.kv * dim
    match node.qkv:
        case SplitQkv(q=query, k=key, v=value):
            gates = isinstance(node, Attention) and node.gated
            for linear, rows in ((query, 2 * q if gates else q), (key, kv), (value, kv)):
                yield from of_linear(linear, rows, hidden)
        case FusedQkv(linear=linear):
            yield from of_linear(linear, q + 2 * kv, hidden)
    yield from of_linear(node.out, hidden, q)
    if node.norms is not None:
        whole = node.norms.joint
        yield from of_norm("norm of queries", node.norms.q, q if whole else dim)
        yield from of_norm("norm of keys", node.norms.k, kv if whole else dim)


def of_grouped(node: Attention, group: CacheGroup, hidden: int) -> Misfits:
    """Yield what does not fit of attention over a KV cache of heads."""
    heads, dim = node.heads, node.heads.dim
    yield from of_heads(node, hidden)
    if (group.kv_heads, group.key_size, group.value_size) != (heads.kv, dim, dim):
        yield f"cache group {group.index} does not hold {heads.kv} keys of {dim} channels"
    if group.window != node.window or (node.window is not None and node.window < 1):
        yield f"a window of {node.window} is kept as {group.window}"
    if isinstance(node.positions, Rope):
        yield from _rope(node.positions, dim)
    if node.sinks is not None:
        yield from of_weight(node.sinks, heads.query)
    if node.logn_base is not None and node.logn_base < 2:
        yield f"the logarithm's base is {node.logn_base}; it takes 2 or more"
    if (growth := node.llama4_scale) is not None and (growth.length < 1 or growth.offset < 0):
        yield f"a length of {growth.length} and an offset of {growth.offset}: 1 and 0 at least"


def of_latent(node: MlaAttention, group: CacheGroup, hidden: int) -> Misfits:
    """Yield what does not fit of attention over a KV cache of latents."""
    per_head, heads = node.nope + node.rotated, node.heads
    match node.q:
        case Linear():
            yield from of_linear(node.q, heads * per_head, hidden)
        case LowRank(down=down, norm=norm, up=up):
            width = down.weight.shape[0]
            yield from of_linear(down, width, hidden)
            yield from of_norm("norm of the query's latent", norm, width)
            yield from of_linear(up, heads * per_head, width)
    yield from of_linear(node.kv_down, node.latent + node.rotated, hidden)
    yield from of_norm("norm of the latent", node.kv_norm, node.latent)
    yield from of_linear(node.kv_up, heads * (node.nope + node.value), node.latent)
    yield from of_linear(node.out, hidden, heads * node.value)
    yield from _rope(node.rope, node.rotated)
    if _kept_in(group) != (1, node.latent + node.rotated, node.latent, True):
        yield f"cache group {group.index} does not hold latents of {node.latent} channels"


def of_indexer(node: Indexer, attention: MlaAttention, groups: tuple[CacheGroup, ...]) -> Misfits:
    """Yield what does not fit of the indexer of sparse attention."""
    hidden = attention.kv_down.weight.shape[1]
    low = attention.q.up.weight.shape[1] if isinstance(attention.q, LowRank) else hidden
    yield from of_linear(node.q, node.heads * node.dim, low)
    yield from of_linear(node.k, node.dim, hidden)
    yield from of_norm("norm of an indexer's keys", node.k_norm, node.dim)
    yield from of_linear(node.weights, node.heads, hidden)
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
