"""[attn] -> an attention node."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, cast

from spaninfer_engine.spec.attention_nodes import (
    Alibi,
    Attention,
    FusedQkv,
    HeadNorms,
    Heads,
    Llama4Scale,
    LowRank,
    MlaAttention,
    RaggedAttention,
    Rope,
    SplitQkv,
)
from spaninfer_engine.spec.cache_groups import Groups, Kept
from spaninfer_engine.spec.delta_nodes import DeltaAttention
from spaninfer_engine.spec.maker import Maker, NormKind
from spaninfer_engine.spec.sections.delta import DeltaReader
from spaninfer_engine.spec.sections.indexer import IndexerReader
from spaninfer_engine.spec.sections.relative import relative_bias
from spaninfer_engine.spec.sections.rope import rope, yarn_factor
from spaninfer_engine.spec.weight_nodes import Linear, Ones, Weight

_RAGGED = {
    "kind": ("mha",),
    "pos": ("none", "rope", "relative"),
    "chunked": (False,),
    "logn": (None,),
    "llama4_beta": (None,),
    "sinks": (False,),
    "gated": (False,),
}


class AttentionReader:
    """Reads [attn] once and makes the attention of any layer."""

    def __init__(self, maker: Maker) -> None:
        scope = maker.scope
        self._maker, self._scope = maker, scope
        self._hidden = scope.integer("dims", "hidden")
        self._heads = scope.integer("dims", "heads")
        self._mla = scope.text("attn", "kind") == "mla"
        self._causal = scope.flag("attn", "causal")
        self._window = scope.optional_integer("attn", "window")
        self._scale = scope.number("attn", "scale")
        if scope.flag("attn", "yarn_scale"):
            self._scale *= yarn_factor(scope)
        bias = scope.text("attn", "bias")
        self._qkv_bias, self._o_bias = bias != "none", bias == "q,k,v,o"
        self._gated = scope.flag("attn", "gated")
        self._positions = {local: self._position(local) for local in (False, True)}
        self._relative = relative_bias(maker) if scope.text("attn", "pos") == "relative" else None
        self._indexers = IndexerReader(maker, self._hidden)
        self._delta = DeltaReader(maker)
        self._check()

    def layer(
        self, index: int, within: str, groups: Groups
    ) -> Attention | MlaAttention | DeltaAttention | RaggedAttention:
        """Return the attention of one layer, whose names begin with `within`."""
        if not self._causal:
            return self._ragged(index, within)
        if self._delta.has(index):
            return self._delta.layer(index, within, groups)
        if self._mla:
            return self._latent(index, within, groups)
        return self._grouped(index, within, groups, self._window_of(index))

    def _window_of(self, index: int) -> int | None:
        return self._window if self._scope.flag("attn", "window_layers", index) else None

    def _check(self) -> None:
        scope = self._scope
        if self._mla and self._positions[False].__class__ is not Rope:
            raise scope.error("attn", "pos", "latent attention needs rope")
        if self._mla and (self._qkv_bias or self._window):
            raise scope.error("attn", "kind", "latent attention has neither bias nor window here")
        if self._gated and (self._mla or scope.text("attn", "qkv") != "split" or self._qkv_bias):
            problem = "is built for grouped heads with three projections, and without biases"
            raise scope.error("attn", "gated", problem)
        if scope.optional_integer("attn", "index_topk") is not None and not self._mla:
            raise scope.error("attn", "index_topk", "sparse attention is built for mla alone")
        kv_heads = None if self._mla else scope.integer("dims", "kv_heads")
        if kv_heads is not None and self._heads % kv_heads:
            problem = f"{self._heads} heads are no multiple of {kv_heads}"
            raise scope.error("dims", "kv_heads", problem)
        if self._causal == (scope.spec.kind == "encoder"):
            raise scope.error("attn", "causal", "a decoder is causal, and an encoder is not")
        if not self._causal:
            self._check_ragged()

    def _check_ragged(self) -> None:
        """Refuse what attention without a cache does not have yet."""
        for key, built in _RAGGED.items():
            if self._scope.value("attn", key) not in built:
                words = " and ".join(map(repr, built))
                raise self._scope.error("attn", key, f"encoders are built with {words} alone")

    def _position(self, local: bool) -> Rope | Alibi | None:
        match self._scope.text("attn", "pos"):
            case "rope":
                return rope(self._scope, local)
            case "alibi":
                scaled = self._scope.flag("attn", "alibi_scaled")
                rounded = self._scope.flag("attn", "alibi_bf16")
                if rounded and not scaled:
                    raise self._scope.error("attn", "alibi_bf16", "is built with alibi_scaled only")
                return Alibi(scaled, rounded)
            case "none":
                return None
            case "relative" if not self._causal:
                return None  # what a layer adds to its scores: `_relative`
            case other:
                raise self._scope.error("attn", "pos", f"{other} is not built for decoders")

    def _grouped(self, index: int, within: str, groups: Groups, window: int | None) -> Attention:
        scope = self._scope
        kv_heads, head_dim = scope.integer("dims", "kv_heads"), scope.integer("dims", "head_dim")
        heads = Heads(self._heads, kv_heads, head_dim)
        return Attention(
            heads=heads,
            qkv=self._qkv(within, heads),
            out=self._out(within, heads.query * heads.dim),
            scale=self._scale,
            group=groups.join(Kept(heads.kv, heads.dim, heads.dim, window), index),
            positions=self._position_of(index, window),
            norms=self._norms(index, within, heads),
            softcap=scope.optional_number("attn", "softcap"),
            window=window,
            chunked=window is not None and scope.flag("attn", "chunked"),
            logn_base=scope.optional_integer("attn", "logn"),
            llama4_scale=self._llama4_scale(index),
            sinks=self._sinks(within),
            gated=self._gated,
        )

    def _position_of(self, index: int, window: int | None) -> Rope | Alibi | None:
        """Return the positions of a layer; some layers of a model with rope may have none."""
        place = self._positions[window is not None]
        if isinstance(place, Rope) and not self._scope.flag("rope", "layers", index):
            return None
        return place

    def _llama4_scale(self, index: int) -> Llama4Scale | None:
        beta = self._scope.optional_number("attn", "llama4_beta")
        if beta is None or not self._scope.flag("attn", "llama4_layers", index):
            return None
        length = self._scope.integer("attn", "llama4_length")
        return Llama4Scale(beta, length, self._scope.integer("attn", "llama4_offset"))

    def _sinks(self, within: str) -> Weight | None:
        if not self._scope.flag("attn", "sinks"):
            return None
        return Weight(self._maker.name("sinks", within, suffix=""), (self._heads,), 0)

    def _norms(self, index: int, within: str, heads: Heads) -> HeadNorms | None:
        scope, maker = self._scope, self._maker
        kind = scope.text("attn", "qk_norm")
        if kind == "none" or not scope.flag("attn", "qk_norm_layers", index):
            return None
        joint = scope.text("attn", "qk_norm_over") == "all"
        q, k = (
            maker.norm(
                maker.name(key, within), heads.dim * (count if joint else 1), cast(NormKind, kind)
            )
            for key, count in (("q_norm", heads.query), ("k_norm", heads.kv))
        )
        if q is None or k is None:
            raise scope.error("attn", "qk_norm", "[weights] q_norm and k_norm must have names")
        if not scope.flag("attn", "qk_norm_weights"):
            q, k = (replace(norm, weight=Ones(norm.weight.shape)) for norm in (q, k))
        return HeadNorms(q, k, joint, scope.text("attn", "qk_norm_place") == "after")

    def _ragged(self, index: int, within: str) -> RaggedAttention:
        """Return the attention of an encoder's layer; a window counts on both sides."""
        plain = self._grouped(index, within, Groups(), self._window_of(index))
        positions, window = self._relative or plain.positions, plain.window
        assert not isinstance(positions, Alibi)
        return RaggedAttention(
            heads=plain.heads,
            qkv=plain.qkv,
            out=plain.out,
            scale=plain.scale,
            positions=positions,
            norms=plain.norms,
            softcap=plain.softcap,
            window=window,
            ahead=None if window is None else window - 1,
        )

    def _qkv(self, within: str, heads: Heads) -> SplitQkv | FusedQkv:
        layout = self._scope.text("attn", "qkv")
        q, kv = heads.query * heads.dim * (2 if self._gated else 1), heads.kv * heads.dim
        if layout == "split":
            return SplitQkv(
                self._rows(within, "q", q), self._rows(within, "k", kv), self._rows(within, "v", kv)
            )
        # Grouped rows lie kv head by kv head, so that one cut gives each rank whole groups.
        parts = (q, kv, kv) if layout == "concat" else ()
        return FusedQkv(
            self._rows(within, "qkv", q + 2 * kv, parts),
            cast(Literal["concat", "grouped"], layout),
        )

    def _rows(self, within: str, key: str, rows: int, parts: tuple[int, ...] = ()) -> Linear:
        name = self._maker.name(key, within)
        return self._maker.linear(
            name, rows, self._hidden, bias=self._qkv_bias, split=0, parts=parts
        )

    def _out(self, within: str, columns: int) -> Linear:
        name = self._maker.name("o", within)
        return self._maker.linear(name, self._hidden, columns, bias=self._o_bias, split=1)

    def _latent(self, index: int, within: str, groups: Groups) -> MlaAttention:
        scope, maker = self._scope, self._maker
        nope, rotated = scope.integer("dims", "qk_nope"), scope.integer("dims", "qk_rope")
        value, latent = scope.integer("dims", "v_dim"), scope.integer("dims", "kv_lora")
        eps = scope.number("norm", "lora_eps")
        kv_norm = maker.norm(maker.name("kv_a_norm", within), latent, "rms", eps)
        place = self._positions[False]
        assert isinstance(place, Rope)
        assert kv_norm is not None
        return MlaAttention(
            heads=self._heads,
            nope=nope,
            rotated=rotated,
            value=value,
            latent=latent,
            q=self._latent_query(within, self._heads * (nope + rotated), eps),
            kv_down=maker.linear(maker.name("kv_a", within), latent + rotated, self._hidden),
            kv_norm=kv_norm,
            kv_up=maker.linear(
                maker.name("kv_b", within), self._heads * (nope + value), latent, split=0
            ),
            out=self._out(within, self._heads * value),
            rope=place,
            scale=self._scale,
            group=groups.join(Kept(1, latent + rotated, latent, values_in_keys=True), index),
            indexer=self._indexers.layer(index, within, groups),
        )

    def _latent_query(self, within: str, rows: int, eps: float) -> Linear | LowRank:
        maker = self._maker
        width = self._scope.optional_integer("dims", "q_lora")
        if width is None:
            return self._rows(within, "q", rows)
        norm = maker.norm(maker.name("q_a_norm", within), width, "rms", eps)
        assert norm is not None
        return LowRank(
            down=maker.linear(maker.name("q_a", within), width, self._hidden),
            norm=norm,
            up=maker.linear(maker.name("q_b", within), rows, width, split=0),
        )
