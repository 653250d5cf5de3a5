"""A spec and a config.json -> the tree of the model."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import cast

from spaninfer_engine.errors import NotBuilt, SpecError
from spaninfer_engine.spec.account import check_expected, unread
from spaninfer_engine.spec.cache_groups import Groups
from spaninfer_engine.spec.fit import misfits
from spaninfer_engine.spec.language.typed import MAX_INDEX
from spaninfer_engine.spec.maker import Maker, NormKind, norm_rule
from spaninfer_engine.spec.nodes import (
    Decoder,
    Embedding,
    Encoder,
    Head,
    Layer,
    Learned,
    Model,
    Norms,
    Sinusoidal,
    ropes,
)
from spaninfer_engine.spec.read import ModelSpec
from spaninfer_engine.spec.scope import Scope
from spaninfer_engine.spec.sections.attention import AttentionReader
from spaninfer_engine.spec.sections.head import classifier
from spaninfer_engine.spec.sections.mlp import MlpReader
from spaninfer_engine.spec.sections.tower import Reading, read_towers
from spaninfer_engine.spec.tree import weights
from spaninfer_engine.spec.weight_nodes import Linear, Weight

WHY_NOT = {
    "encdec": "encoder-decoder pairs need cross-attention; served are decoders and encoders",
}
WITH_TOWERS = ("vlm", "audio_lm")


class UnreadConfigKeys(UserWarning):
    """config.json holds keys that nothing reads, and that are not known to be inert."""


class TowerNotUsed(UserWarning):
    """A model that also sees or hears is loaded for text alone."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """The tree, the config keys that were not read, and the spec's keys that were not used.

    `missing` says why a model that also sees or hears has no tower here.
    """

    model: Model
    unread: tuple[str, ...]
    unasked: tuple[tuple[str, str], ...]
    missing: str = ""


def resolve(
    spec: ModelSpec, config: Mapping[str, object], names: Collection[str] | None = None
) -> Model:
    """Return the tree of a model.

    `names` are the checkpoint's tensors; they choose among the spec's declared alternatives.
    A model that also sees or hears has towers, unless its spec, its config or the checkpoint has
    none. Raises SpecError, NotBuilt, and warns with UnreadConfigKeys and TowerNotUsed.
    """
    resolution = resolve_fully(spec, config, names)
    if resolution.missing:
        message = f"{spec.source}: {resolution.missing}; the model is loaded for text alone"
        warnings.warn(message, TowerNotUsed, stacklevel=2)
    if resolution.unread:
        keys = ", ".join(resolution.unread)
        message = f"{spec.source}: config.json says {keys}, which nothing reads"
        warnings.warn(message, UnreadConfigKeys, stacklevel=2)
    return resolution.model


def resolve_fully(
    spec: ModelSpec, config: Mapping[str, object], names: Collection[str] | None = None
) -> Resolution:
    """Return the tree of a model, and what of its config and its spec was of no use."""
    if spec.kind in WHY_NOT:
        raise NotBuilt(f"{spec.name} is of kind {spec.kind!r}: {WHY_NOT[spec.kind]}")
    scope = Scope(spec, text_config(spec, config))
    check_expected(scope)
    maker = Maker(scope, names, norm_rule(scope))
    model: Model = _encoder(maker) if spec.kind == "encoder" else _decoder(maker)
    towers = Reading()
    if spec.kind in WITH_TOWERS and isinstance(model, Decoder):
        towers = read_towers(spec, config, names, model.hidden)
        model = _with_towers(model, towers)
    for problem in misfits(model):
        raise SpecError(spec.source, "", "sizes", problem)
    scopes = (scope, *towers.scopes)
    unasked = tuple(p for p in scope.unasked() if all(p in each.unasked() for each in scopes))
    return Resolution(model, (*unread(scope), *towers.unread()), unasked, towers.missing)


def text_config(spec: ModelSpec, config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the part of a config that speaks of the text model.

    That its embedding is the head may be said beside it, for the whole model.
    """
    for key in spec.text:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            tied = {"tie_word_embeddings": True} if config.get("tie_word_embeddings") else {}
            return {**cast("Mapping[str, object]", inner), **tied}
    return config


def _with_towers(decoder: Decoder, reading: Reading) -> Decoder:
    """Return the decoder with its towers, whose tensors are surplus no longer."""
    names = {weight.name for weight in weights(reading.towers)}
    surplus = (
        pattern
        for pattern in decoder.surplus
        if not any(fnmatchcase(name, pattern) for name in names)
    )
    return replace(
        decoder,
        towers=reading.towers,
        media=reading.media,
        surplus=(*surplus, *reading.surplus),
    )


def _decoder(maker: Maker) -> Decoder:
    scope = maker.scope
    hidden = scope.integer("dims", "hidden")
    embedding = _embedding(maker)
    groups = Groups()
    layers = _layers(maker, groups)
    decoder = Decoder(
        architecture=scope.spec.name,
        vocab=scope.integer("dims", "vocab"),
        hidden=hidden,
        max_len=scope.integer("dims", "max_pos"),
        embedding=embedding,
        layers=layers,
        norm=maker.norm(maker.name("final_norm", maker.prefix), hidden),
        head=_head(maker, embedding),
        groups=groups.all(),
        surplus=_surplus(maker),
    )
    return replace(decoder, max_len=_reach(scope, decoder))


def _encoder(maker: Maker) -> Encoder:
    """Return an encoder, with the head of a classifier if it is one."""
    scope = maker.scope
    hidden = scope.integer("dims", "hidden")
    pool, head, labels = classifier(maker)
    return Encoder(
        architecture=scope.spec.name,
        vocab=scope.integer("dims", "vocab"),
        hidden=hidden,
        max_len=scope.integer("dims", "max_pos"),
        embedding=_embedding(maker),
        layers=_layers(maker, Groups()),
        norm=maker.norm(maker.name("final_norm", maker.prefix), hidden),
        pool=pool,
        head=head,
        labels=labels,
        surplus=(*_surplus(maker), *_unused_heads(maker)),
    )


def _layers(maker: Maker, groups: Groups) -> tuple[Layer, ...]:
    attention, mlp = AttentionReader(maker), MlpReader(maker)
    return tuple(
        _layer(maker, attention, mlp, groups, index)
        for index in range(maker.scope.integer("dims", "layers"))
    )


def _reach(scope: Scope, decoder: Decoder) -> int:
    """Return how many positions a model is good for.

    Its yarn table may say more than the config; the dynamic kind begins to act where the config's
    length ends.
    """
    reach = decoder.max_len
    for rule in (rope.frequencies for rope in ropes(decoder)):
        if rule.kind in ("yarn", "dynamic"):
            trained = rule.original_len if rule.kind == "yarn" else rule.max_len
            reach = max(reach, int(trained * rule.factor))
    if reach > MAX_INDEX:
        problem = f"stretched it reaches {reach:,} positions; at most {MAX_INDEX:,} are told apart"
        raise scope.error("rope", "scaling", problem)
    return reach


def _embedding(maker: Maker) -> Embedding:
    scope = maker.scope
    hidden, width = scope.integer("dims", "hidden"), scope.integer("dims", "embed")
    project = None
    if scope.flag("embed", "project"):
        project = maker.linear(maker.name("embed_proj", maker.prefix), hidden, width)
    table = Weight(
        f"{maker.name('embed', maker.prefix)}.weight", (scope.integer("dims", "vocab"), width), 0
    )
    norm, kind = None, scope.text("embed", "norm")
    if kind != "none":
        name = maker.name("embed_norm", maker.prefix)
        norm = maker.norm(name, hidden, cast(NormKind, kind))
    return Embedding(
        table=table,
        scale=scope.number("embed", "scale"),
        project=project,
        positions=_positions(maker),
        types=_types(maker),
        norm=norm,
    )


def _types(maker: Maker) -> Weight | None:
    name = maker.name("type_embed", maker.prefix)
    if not name:
        return None
    rows, hidden = (maker.scope.integer("dims", size) for size in ("types", "hidden"))
    return Weight(f"{name}.weight", (rows, hidden))


def _positions(maker: Maker) -> Learned | Sinusoidal | None:
    scope = maker.scope
    hidden, offset = scope.integer("dims", "hidden"), scope.integer("embed", "pos_offset")
    match scope.text("embed", "positions"):
        case "learned":
            name = maker.name("pos_embed", maker.prefix)
            rows = scope.integer("dims", "max_pos") + offset
            return Learned(Weight(f"{name}.weight", (rows, hidden)), offset)
        case "sinusoidal":
            if hidden % 2 or hidden < 4:
                problem = (
                    f"sines and cosines take an even number of channels from 4 on, got {hidden}"
                )
                raise scope.error("embed", "positions", problem)
            return Sinusoidal(hidden, offset)
        case _:
            return None


def _layer(
    maker: Maker, attention: AttentionReader, mlp: MlpReader, groups: Groups, index: int
) -> Layer:
    within = maker.prefix + maker.name("layer").format(i=index)
    hidden = maker.scope.integer("dims", "hidden")
    made = {
        node: maker.norm(maker.name(key, within), hidden)
        for node, key in (
            ("attention_pre", "attn_pre"),
            ("attention_post", "attn_post"),
            ("attention_after", "attn_after"),
            ("mlp_pre", "mlp_pre"),
            ("mlp_post", "mlp_post"),
            ("mlp_after", "mlp_after"),
        )
    }
    if index == 0 and not maker.scope.flag("block", "first_attn_pre"):
        made["attention_pre"] = None
    return Layer(
        attention=attention.layer(index, within, groups),
        mlp=mlp.layer(index, within),
        norms=Norms(**made),
        parallel=maker.scope.flag("block", "parallel"),
        residual_scale=maker.scope.number("block", "residual_scale"),
    )


def _head(maker: Maker, embedding: Embedding) -> Head:
    """Return the head. A stored one wins over a tied one, as `tie_word_embeddings` cannot be
    trusted in published files."""
    scope = maker.scope
    vocab, width = embedding.table.shape
    project = None
    if scope.flag("head", "project"):
        name = maker.name("head_proj", maker.prefix)
        project = maker.linear(name, width, scope.integer("dims", "hidden"))
    name = maker.name("head")
    tied = scope.flag("head", "tied") and not maker.has(f"{name}.weight")
    bias = scope.flag("head", "bias")
    if tied:
        linear = Linear(embedding.table, Weight(f"{name}.bias", (vocab,), 0) if bias else None)
    else:
        linear = maker.linear(name, vocab, width, bias=bias, split=0)
    return Head(
        linear=linear,
        tied=tied,
        project=project,
        scale=scope.number("head", "scale"),
        softcap=scope.optional_number("head", "softcap"),
        normalise=scope.flag("head", "normalize"),
    )


def _unused_heads(maker: Maker) -> tuple[str, ...]:
    """Return the patterns of what is stored behind an encoder, and is not part of a vector."""
    names = [maker.name("pooler", maker.prefix)]
    if maker.scope.flag("head", "mlm"):
        names += [maker.name(key) for key in ("mlm_dense", "mlm_norm", "mlm_bias")]
    return tuple(f"{name}*" for name in names if name)


def _surplus(maker: Maker) -> tuple[str, ...]:
    """Return the patterns of stored tensors that the model does not use."""
    scope = maker.scope
    layers = scope.integer("dims", "layers")
    further = range(layers, layers + scope.integer("dims", "extra_layers"))
    layer = maker.prefix + maker.name("layer")
    return (*scope.texts("weights", "ignore"), *(f"{layer.format(i=i)}*" for i in further))
