"""Decoders whose hidden states are pooled: the same layers without cache and head."""

from __future__ import annotations

from dataclasses import replace

from spaninfer_engine.errors import NotBuilt
from spaninfer_engine.spec.attention_nodes import Alibi, Attention, RaggedAttention
from spaninfer_engine.spec.nodes import Decoder, Encoder, Layer
from spaninfer_engine.spec.pooling_nodes import Pool


def as_encoder(decoder: Decoder, pool: Pool) -> Encoder:
    """Return a decoder as an encoder: every token sees those in front of it, nothing is cached.

    Raises NotBuilt for latent attention, ALiBi, and positions that depend on a text's length.
    """
    if decoder.frequency_state(decoder.max_len):
        raise NotBuilt(
            f"vectors of {decoder.architecture} are not built: its rotations depend on the length"
        )
    head = decoder.head.linear
    stored = [head.weight.name, *([] if head.bias is None else [head.bias.name])]
    return Encoder(
        architecture=decoder.architecture,
        vocab=decoder.vocab,
        hidden=decoder.hidden,
        max_len=decoder.max_len,
        embedding=decoder.embedding,
        layers=tuple(_ragged(layer, decoder.architecture) for layer in decoder.layers),
        norm=decoder.norm,
        pool=pool,
        surplus=(*decoder.surplus, *stored),
    )


def _ragged(layer: Layer, architecture: str) -> Layer:
    attention = layer.attention
    if (
        not isinstance(attention, Attention)
        or isinstance(attention.positions, Alibi)
        or attention.chunked
        or attention.logn_base is not None
        or attention.llama4_scale is not None
        or attention.sinks is not None
        or attention.gated
    ):
        raise NotBuilt(
            f"vectors of {architecture} are not built: its attention needs a KV cache here; load a "
            "decoder with rotary positions"
        )
    return replace(
        layer,
        attention=RaggedAttention(
            heads=attention.heads,
            qkv=attention.qkv,
            out=attention.out,
            scale=attention.scale,
            positions=attention.positions,
            norms=attention.norms,
            softcap=attention.softcap,
            window=attention.window,
            ahead=0,
        ),
    )
