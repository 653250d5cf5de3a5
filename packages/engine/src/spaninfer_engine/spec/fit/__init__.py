"""Consistency of a tree's sizes, checked once: kernels take their sizes from it, unchecked.

By construction most of this holds for every spec. It is asked of every tree all the same: what does
not hold would have a compiled kernel read and write beside its buffers.
"""

from __future__ import annotations

from spaninfer_engine.spec.attention_nodes import Attention, Indexer, MlaAttention, RaggedAttention
from spaninfer_engine.spec.delta_nodes import DeltaAttention
from spaninfer_engine.spec.fit.attention import of_grouped, of_heads, of_indexer, of_latent
from spaninfer_engine.spec.fit.delta import of_delta
from spaninfer_engine.spec.fit.mlp import of_mlp
from spaninfer_engine.spec.fit.parts import Misfits, of_linear, of_norm, of_weight
from spaninfer_engine.spec.fit.towers import of_tower
from spaninfer_engine.spec.nodes import Decoder, Embedding, Head, Layer, Learned, Model, Sinusoidal


def misfits(model: Model) -> Misfits:
    """Yield a sentence for every size, index or bound that does not fit the tensor it is about."""
    yield from _embedding(model.embedding, model)
    for layer in model.layers:
        yield from _layer(layer, model)
    yield from of_norm("final norm", model.norm, model.hidden)
    if isinstance(model, Decoder):
        yield from _head(model.head, model)
        for tower in model.towers:
            yield from of_tower(tower, model)


def _embedding(node: Embedding, model: Model) -> Misfits:
    width = model.hidden if node.project is None else node.project.weight.shape[1]
    yield from of_weight(node.table, model.vocab, width)
    if node.project is not None:
        yield from of_linear(node.project, model.hidden, width)
    match node.positions:
        case Learned(table=table, offset=offset):
            yield from of_weight(table, table.shape[0], model.hidden)
            if offset < 0 or table.shape[0] < model.max_len + offset:
                yield (
                    f"{table.name} has {table.shape[0]} rows; {model.max_len} positions from row "
                    f"{offset} on are read"
                )
        case Sinusoidal(dim=dim, offset=offset) if dim != model.hidden or dim < 4 or offset < 0:
            yield f"sines of {dim} channels from {offset} on are added to {model.hidden}"
    if node.types is not None:
        yield from of_weight(node.types, max(node.types.shape[0], 1), model.hidden)
    yield from of_norm("norm of the embedding", node.norm, model.hidden)


def _head(node: Head, decoder: Decoder) -> Misfits:
    width = decoder.hidden if node.project is None else node.project.weight.shape[0]
    yield from of_linear(node.linear, decoder.vocab, width)
    if node.project is not None:
        yield from of_linear(node.project, width, decoder.hidden)


def _layer(layer: Layer, model: Model) -> Misfits:
    norms = layer.norms
    for norm in (norms.attention_pre, norms.attention_post, norms.attention_after,
                 norms.mlp_pre, norms.mlp_post, norms.mlp_after):  # fmt: skip
        yield from of_norm("norm of a layer", norm, model.hidden)
    yield from _attention(layer.attention, model)
    yield from of_mlp(layer.mlp, model.hidden)


def _attention(
    node: Attention | MlaAttention | DeltaAttention | RaggedAttention, model: Model
) -> Misfits:
    if isinstance(node, RaggedAttention):
        yield from of_heads(node, model.hidden)
    elif not 0 <= node.group < len(model.groups):
        yield f"a layer is in cache group {node.group} of {len(model.groups)}"
    elif isinstance(node, MlaAttention):
        yield from of_latent(node, model.groups[node.group], model.hidden)
        if isinstance(node.indexer, Indexer):
            yield from of_indexer(node.indexer, node, model.groups)
    elif isinstance(node, DeltaAttention):
        yield from of_delta(node, model.groups[node.group], model.hidden)
    else:
        yield from of_grouped(node, model.groups[node.group], model.hidden)
