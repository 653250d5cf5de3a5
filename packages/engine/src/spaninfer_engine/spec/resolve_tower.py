"""[media], [vision] and [audio] -> the towers of a decoder, and the tokens that stand for media."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import cast

from spaninfer_engine.spec.account import check_expected, unread
from spaninfer_engine.spec.maker import Maker, NormKind, NormRule
from spaninfer_engine.spec.nodes import (
    ActivationName,
    AxialRope,
    FusedQkv,
    GatedMLP,
    Heads,
    Layer,
    Linear,
    Norm,
    Norms,
    PlainMLP,
    RaggedAttention,
    Weight,
)
from spaninfer_engine.spec.read import Entry, ModelSpec
from spaninfer_engine.spec.scope import Scope
from spaninfer_engine.spec.tower_nodes import (
    MediaTokens,
    Merger,
    PatchPositions,
    PatchTower,
    Tower,
)

_TEXT_ONLY = ("config", "config.default", "config.expect")  # sections about the text model's config


@dataclass(frozen=True, slots=True)
class Reading:
    """The towers of a model, what was read for them, or why there are none."""

    towers: tuple[Tower, ...] = ()
    media: MediaTokens | None = None
    scopes: tuple[Scope, ...] = ()
    own: tuple[tuple[str, Scope], ...] = ()  # those of towers' own configs, by its key
    missing: str = ""

    def unread(self) -> tuple[str, ...]:
        """Return the keys of towers' configs that nobody read."""
        return tuple(f"{within}.{key}" for within, scope in self.own for key in unread(scope))


def read_towers(
    spec: ModelSpec, config: Mapping[str, object], names: Collection[str] | None
) -> Reading:
    """Return the towers that a spec describes, for a whole config.json.

    None where the spec describes none, where the config says nothing of it, or where the checkpoint
    was saved without it.
    """
    if not spec.said("vision"):
        return Reading(missing="its tower is not built yet")
    scope = _scope(spec, config, "vision")
    if isinstance(scope, str):
        return Reading(missing=scope)
    reader = _PatchReader(scope, names)
    if not reader.is_there:
        return Reading(missing="the checkpoint holds no weights of its tower")
    media, media_scope = _media(spec, config)
    tower = reader.tower()
    key = scope.text("vision", "config")
    return Reading((tower,), media, (scope, media_scope), ((key, scope),))


def _scope(spec: ModelSpec, config: Mapping[str, object], section: str) -> Scope | str:
    """Return the scope of a tower's own config; a reason where there is no such config."""
    key = str(spec.entry(section, "config").text)
    inner = config.get(key)
    if not isinstance(inner, Mapping):
        return f"config.json has no {key}"
    own = {place: entry for place, entry in spec.entries.items() if place[0] not in _TEXT_ONLY}
    for name, entry in spec.said(f"{section}.expect").items():
        own["config.expect", name] = entry
    own["config", "ignore"] = Entry(spec.source, spec.entry(section, "ignore").text)
    scope = Scope(replace(spec, entries=MappingProxyType(own)), inner)
    scope.value(section, "config")
    scope.value(section, "ignore")
    check_expected(scope)
    return scope


def _media(spec: ModelSpec, config: Mapping[str, object]) -> tuple[MediaTokens, Scope]:
    scope = Scope(spec, config)
    tokens = {
        field: scope.optional_integer("media", f"{field}_token")
        for field in ("image", "video", "audio", "start", "end")
    }
    seconds = scope.optional_number("media", "seconds_per_t")
    return MediaTokens(**tokens, seconds_per_t=seconds), scope


class _PatchReader:
    """Reads [vision] once and makes the tower."""

    def __init__(self, scope: Scope, names: Collection[str] | None) -> None:
        self._scope = scope
        kind = cast(NormKind, scope.text("vision", "norm"))
        rule = NormRule(kind, scope.number("vision", "eps"), bias=kind == "layer")
        self._maker = Maker(scope, names, rule, section="vision.weights", probe="patch")
        size = scope.integer
        self._hidden, self._heads = size("vision", "hidden"), size("vision", "heads")
        self._merge, self._patch = size("vision", "merge"), size("vision", "patch")
        self._layers = size("vision", "layers")
        self._act = cast(ActivationName, scope.text("vision", "act"))

    @property
    def is_there(self) -> bool:
        """Does the checkpoint hold the tower? Where none is at hand, it does."""
        patch = self._maker.name("patch", self._maker.prefix)
        return self._maker.names is None or self._maker.has(f"{patch}.weight")

    def tower(self) -> PatchTower:
        """Return the tower."""
        size = self._scope.integer
        window, full = self._window(), self._indices("full_layers")
        return PatchTower(
            kinds=("image", "video"),
            hidden=self._hidden,
            width=size("vision", "out"),
            heads=self._heads,
            patch=self._patch,
            temporal=size("vision", "temporal"),
            channels=size("vision", "channels"),
            merge=self._merge,
            embedding=self._embedding(),
            layers=tuple(
                self._layer(index, in_windows=window is not None and index not in full)
                for index in range(self._layers)
            ),
            merger=self._merger("merger", norm_after=False),
            positions=self._positions(),
            window=window,
            deepstack=tuple(
                (layer, self._merger("deep", norm_after=True, j=j))
                for j, layer in enumerate(self._indices("deepstack"))
            ),
        )

    def _embedding(self) -> Linear:
        """Return the patch embedding: stored as a convolution, in which no two patches overlap."""
        size, patch = self._scope.integer, self._patch
        name = self._name("patch")
        pixels = size("vision", "channels"), size("vision", "temporal"), patch, patch
        bias = self._scope.flag("vision", "patch_bias")
        return Linear(
            Weight(f"{name}.weight", (self._hidden, *pixels)),
            Weight(f"{name}.bias", (self._hidden,)) if bias else None,
        )

    def _positions(self) -> PatchPositions | None:
        rows = self._scope.optional_integer("vision", "pos_table")
        if rows is None:
            return None
        side = math.isqrt(rows)
        if side * side != rows:
            raise self._scope.error("vision", "pos_table", f"{rows} rows are no square")
        return PatchPositions(Weight(f"{self._name('pos')}.weight", (rows, self._hidden)), side)

    def _window(self) -> int | None:
        window = self._scope.optional_integer("vision", "window")
        if window is not None and window < self._patch * self._merge:
            problem = f"{window} pixels hold no {self._merge} patches of {self._patch}"
            raise self._scope.error("vision", "window", problem)
        return None if window is None else window // self._merge // self._patch * self._merge

    def _indices(self, key: str) -> tuple[int, ...]:
        indices = cast(tuple[int, ...], self._scope.value("vision", key))
        if any(not 0 <= index < self._layers for index in indices):
            problem = f"{list(indices)} are not all layers of 0 to {self._layers - 1}"
            raise self._scope.error("vision", key, problem)
        if len(set(indices)) < len(indices) or list(indices) != sorted(indices):
            raise self._scope.error("vision", key, f"{list(indices)} do not ascend")
        return indices

    def _layer(self, index: int, *, in_windows: bool) -> Layer:
        within = self._maker.prefix + self._maker.name("layer").format(i=index)
        return Layer(
            attention=self._attention(within, in_windows),
            mlp=self._mlp(within),
            norms=Norms(
                attention_pre=self._norm(self._maker.name("norm1", within), self._hidden),
                mlp_pre=self._norm(self._maker.name("norm2", within), self._hidden),
            ),
        )

    def _attention(self, within: str, in_windows: bool) -> RaggedAttention:
        hidden, maker = self._hidden, self._maker
        dim = hidden // self._heads
        if dim * self._heads != hidden or dim % 4:
            problem = (
                f"{hidden} channels do not make {self._heads} heads of a multiple of 4, whose "
                "halves are rotated by row and by column"
            )
            raise self._scope.error("vision", "heads", problem)
        qkv, out = maker.name("qkv", within), maker.name("o", within)
        parts = (hidden, hidden, hidden)
        fused = maker.linear(qkv, 3 * hidden, hidden, bias=True, split=0, parts=parts)
        return RaggedAttention(
            heads=Heads(self._heads, self._heads, dim),
            qkv=FusedQkv(fused, "concat"),
            out=maker.linear(out, hidden, hidden, bias=True, split=1),
            scale=dim**-0.5,
            positions=AxialRope(dim, self._scope.number("vision", "theta")),
            in_windows=in_windows,
        )

    def _mlp(self, within: str) -> GatedMLP | PlainMLP:
        ffn, hidden, maker = self._scope.integer("vision", "ffn"), self._hidden, self._maker
        up = maker.linear(maker.name("up", within), ffn, hidden, bias=True, split=0)
        down = maker.linear(maker.name("down", within), hidden, ffn, bias=True, split=1)
        if self._scope.text("vision", "mlp") == "plain":
            return PlainMLP(up, down, self._act)
        gate = maker.linear(maker.name("gate", within), ffn, hidden, bias=True, split=0)
        return GatedMLP(gate, up, down, self._act)

    def _merger(self, kind: str, *, norm_after: bool, j: int = 0) -> Merger:
        count = self._merge**2
        wide = count * self._hidden
        norm, up, down = (self._name(f"{kind}_{part}", j) for part in ("norm", "up", "down"))
        out = self._scope.integer("vision", "out")
        return Merger(
            norm=self._norm(norm, wide if norm_after else self._hidden),
            up=self._maker.linear(up, wide, wide, bias=True, split=0),
            down=self._maker.linear(down, out, wide, bias=True, split=1),
            count=count,
            norm_after=norm_after,
        )

    def _name(self, key: str, j: int = 0) -> str:
        within = self._maker.prefix
        name = self._maker.name(key, within)
        if name == "":
            raise self._scope.error("vision.weights", key, "the tower has such a part: name it")
        return name.format(j=j)

    def _norm(self, name: str, channels: int) -> Norm:
        norm = self._maker.norm(name, channels)
        assert norm is not None, name
        return norm
