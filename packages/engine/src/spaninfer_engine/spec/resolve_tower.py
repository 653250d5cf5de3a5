"""[media], [vision] and [audio] -> the towers of a decoder, and the tokens that stand for media."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import ClassVar, Literal, cast

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
    SplitQkv,
    Weight,
)
from spaninfer_engine.spec.read import Entry, ModelSpec
from spaninfer_engine.spec.scope import Scope
from spaninfer_engine.spec.tower_nodes import (
    TAPS,
    AudioTower,
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
    spec: ModelSpec, config: Mapping[str, object], names: Collection[str] | None, width: int
) -> Reading:
    """Return the towers that a spec describes, for a whole config.json and a decoder so wide.

    None where the spec describes none, where the config says nothing of it, or where the checkpoint
    was saved without it.
    """
    section = next((each for each in _READERS if spec.said(each)), None)
    if section is None:
        return Reading(missing="its tower is not built yet")
    scope = _scope(spec, config, section)
    if isinstance(scope, str):
        return Reading(missing=scope)
    reader = _READERS[section](scope, names, width)
    if not reader.is_there:
        return Reading(missing="the checkpoint holds no weights of its tower")
    media, media_scope = _media(spec, config)
    key = scope.text(section, "config")
    return Reading((reader.tower(),), media, (scope, media_scope), ((key, scope),))


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
    beside = cast("tuple[str, ...]", spec.entry(section, "beside").text)
    inner = {**{key: config[key] for key in beside if key in config}, **inner}
    scope = Scope(replace(spec, entries=MappingProxyType(own)), inner)
    for key in ("config", "ignore", "beside"):
        scope.value(section, key)
    check_expected(scope)
    return scope


def _media(spec: ModelSpec, config: Mapping[str, object]) -> tuple[MediaTokens, Scope]:
    scope = Scope(spec, config)
    tokens = {
        field: scope.optional_integer("media", f"{field}_token")
        for field in ("image", "video", "audio", "start", "end")
    }
    seconds = scope.optional_number("media", "seconds_per_t")
    media = MediaTokens(
        **tokens,
        seconds_per_t=seconds,
        frames_apart=scope.flag("media", "frames_apart"),
        bidirectional=scope.flag("media", "bidirectional"),
        around=scope.text("media", "around"),
    )
    return media, scope


class _Reader:
    """The common part of readers of towers: the section, its names, and layers."""

    section: ClassVar[str]
    probe: ClassVar[str]  # the weight by which a checkpoint shows that the tower is there

    def __init__(self, scope: Scope, names: Collection[str] | None, width: int) -> None:
        self._scope, self._width = scope, width
        kind = cast(NormKind, scope.text(self.section, "norm"))
        rule = NormRule(kind, scope.number(self.section, "eps"), bias=kind == "layer")
        place = f"{self.section}.weights"
        self._maker = Maker(scope, names, rule, section=place, probe=self.probe)
        self._hidden, self._heads = self._size("hidden"), self._size("heads")
        self._layers = self._size("layers")
        self._act = cast(ActivationName, scope.text(self.section, "act"))
        if self._hidden % self._heads:
            problem = f"{self._hidden} channels do not make {self._heads} heads"
            raise scope.error(self.section, "heads", problem)

    @property
    def is_there(self) -> bool:
        """Return True if the checkpoint holds the tower, or none is at hand."""
        first = self._maker.name(self.probe, self._maker.prefix)
        return self._maker.names is None or self._maker.has(f"{first}.weight")

    def _size(self, key: str) -> int:
        return self._scope.integer(self.section, key)

    def _layer(self, index: int, attention: Callable[[str], RaggedAttention]) -> Layer:
        within = self._maker.prefix + self._maker.name("layer").format(i=index)
        return Layer(
            attention=attention(within),
            mlp=self._mlp(within),
            norms=Norms(
                attention_pre=self._norm(self._maker.name("norm1", within), self._hidden),
                mlp_pre=self._norm(self._maker.name("norm2", within), self._hidden),
            ),
        )

    def _mlp(self, within: str) -> GatedMLP | PlainMLP:
        return PlainMLP(self._up(within, "up"), self._down(within), self._act)

    def _up(self, within: str, key: str) -> Linear:
        name, ffn = self._maker.name(key, within), self._size("ffn")
        return self._maker.linear(name, ffn, self._hidden, bias=True, split=0)

    def _down(self, within: str) -> Linear:
        name, ffn = self._maker.name("down", within), self._size("ffn")
        return self._maker.linear(name, self._hidden, ffn, bias=True, split=1)

    def _out(self, within: str) -> Linear:
        name = self._maker.name("o", within)
        return self._maker.linear(name, self._hidden, self._hidden, bias=True, split=1)

    def _name(self, key: str, within: str | None = None, j: int = 0) -> str:
        name = self._maker.name(key, self._maker.prefix if within is None else within)
        if name == "":
            problem = "the tower has such a part: name it"
            raise self._scope.error(f"{self.section}.weights", key, problem)
        return name.format(j=j)

    def _norm(self, name: str, channels: int) -> Norm:
        norm = self._maker.norm(name, channels)
        assert norm is not None, name
        return norm

    def _split(self, within: str, *, key_bias: bool) -> SplitQkv:
        hidden, maker = self._hidden, self._maker
        return SplitQkv(
            *(
                maker.linear(
                    *(maker.name(key, within), hidden, hidden),
                    bias=key != "k" or key_bias,
                    split=0,
                )
                for key in ("q", "k", "v")
            )
        )


class _PatchReader(_Reader):
    """Reads [vision] once and makes the tower."""

    section = "vision"
    probe = "patch"

    def __init__(self, scope: Scope, names: Collection[str] | None, width: int) -> None:
        super().__init__(scope, names, width)
        self._patch = self._size("patch")
        self._tile = self._tile_side()
        self._merge = self._merged_side()
        self._out_width = scope.optional_integer("vision", "out") or width

    def tower(self) -> PatchTower:
        """Return the tower."""
        window, full = self._window(), self._indices("full_layers")
        return PatchTower(
            kinds=("image", "video") if self._scope.flag("vision", "videos") else ("image",),
            hidden=self._hidden,
            width=self._out_width,
            heads=self._heads,
            patch=self._patch,
            temporal=self._size("temporal"),
            channels=self._size("channels"),
            merge=self._merge,
            embedding=self._embedding(),
            layers=tuple(
                self._layer(
                    index, partial(self._attention, window is not None and index not in full)
                )
                for index in range(self._layers)
            ),
            merger=self._merger(),
            positions=self._positions(),
            norm=self._maker.norm(self._maker.name("final_norm", self._maker.prefix), self._hidden),
            window=window,
            deepstack=tuple(
                (layer, self._mlp_merger("deep", self._maker.prefix, norm_after=True, j=j))
                for j, layer in enumerate(self._indices("deepstack"))
            ),
            tile=self._tile,
            extra=self._extra(),
        )

    def _tile_side(self) -> int | None:
        """Return the patches of a tile's side; what is left of its pixels is not seen."""
        pixels = self._scope.optional_integer("vision", "tile")
        if pixels is not None and pixels < self._patch:
            problem = f"{pixels} pixels hold no patch of {self._patch}"
            raise self._scope.error("vision", "tile", problem)
        return None if pixels is None else pixels // self._patch

    def _merged_side(self) -> int:
        """Return the patches of a row's side."""
        rows = self._scope.optional_integer("vision", "tile_tokens")
        if rows is None:
            return self._size("merge")
        side = math.isqrt(rows)
        if self._tile is None or side * side != rows or self._tile % side:
            problem = f"{rows} tokens are no square that divides a tile of {self._tile} patches"
            raise self._scope.error("vision", "tile_tokens", f"{problem} a side")
        return self._tile // side

    def _extra(self) -> Weight | None:
        """Return the row behind every line of a picture."""
        name = self._maker.name("extra", suffix="")
        return Weight(name, (self._out_width,)) if name else None

    def _embedding(self) -> Linear:
        """Return the patch embedding: stored as a convolution, in which no two patches overlap."""
        patch = self._patch
        name = self._name("patch")
        frames = () if self._tile is not None else (self._size("temporal"),)
        pixels = self._size("channels"), *frames, patch, patch
        bias = self._scope.flag("vision", "patch_bias")
        return Linear(
            Weight(f"{name}.weight", (self._hidden, *pixels)),
            Weight(f"{name}.bias", (self._hidden,)) if bias else None,
        )

    def _positions(self) -> PatchPositions | None:
        rows = self._scope.optional_integer("vision", "pos_table")
        if rows is None and self._tile is not None:
            rows = self._tile**2
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

    def _attention(self, in_windows: bool, within: str) -> RaggedAttention:
        dim = self._hidden // self._heads
        return RaggedAttention(
            heads=Heads(self._heads, self._heads, dim),
            qkv=self._qkv(within),
            out=self._out(within),
            scale=dim**-0.5,
            positions=self._rope(dim),
            in_windows=in_windows,
        )

    def _rope(self, dim: int) -> AxialRope | None:
        theta = self._scope.optional_number("vision", "theta")
        if theta is None:
            return None
        if dim % 4:
            problem = (
                f"heads of {dim} channels cannot turn half by row and half by column, in pairs"
            )
            raise self._scope.error("vision", "heads", problem)
        return AxialRope(dim, theta)

    def _qkv(self, within: str) -> SplitQkv | FusedQkv:
        hidden, layout = self._hidden, self._scope.text("vision", "qkv")
        if layout == "split":
            return self._split(within, key_bias=True)
        parts = (hidden, hidden, hidden) if layout == "concat" else ()
        name = self._maker.name("qkv", within)
        fused = self._maker.linear(name, 3 * hidden, hidden, bias=True, split=0, parts=parts)
        return FusedQkv(fused, cast(Literal["concat", "grouped"], layout))

    def _mlp(self, within: str) -> GatedMLP | PlainMLP:
        if self._scope.text("vision", "mlp") == "plain":
            return super()._mlp(within)
        gate, up = self._up(within, "gate"), self._up(within, "up")
        return GatedMLP(gate, up, self._down(within), self._act)

    def _merger(self) -> Merger:
        kind, maker = self._scope.text("vision", "merger"), self._maker
        suffix = "" if kind == "mean" else ".weight"
        down = maker.name("merger_down")
        within = maker.prefix_of("merger_prefix", down + suffix)
        if kind == "mlp":
            return self._mlp_merger("merger", within, norm_after=False)
        if kind == "mean":
            return self._mean_merger(within, down)
        if self._merge != 1:
            problem = f"each patch is a row, and {self._merge} squared make one"
            raise self._scope.error("vision", "merger", problem)
        out, up = self._out_width, within + maker.name("merger_up")
        return Merger(
            norm=None,
            up=maker.linear(up, out, self._hidden, bias=True, split=0),
            down=maker.linear(within + down, out, out, bias=True, split=1),
            count=1,
        )

    def _mean_merger(self, within: str, down: str) -> Merger:
        """Return a merger whose projection is stored [in, out], under a name without an ending."""
        name = within + self._maker.name("merger_norm")
        norm = self._maker.norm(name, self._hidden, "rms")
        assert norm is not None
        return Merger(
            norm=replace(norm, plus_one=True),
            up=None,
            down=Linear(Weight(within + down, (self._hidden, self._out_width)), transposed=True),
            count=self._merge**2,
            norm_after=True,
            is_mean=True,
        )

    def _mlp_merger(self, kind: str, within: str, *, norm_after: bool, j: int = 0) -> Merger:
        count, maker = self._merge**2, self._maker
        wide = count * self._hidden
        norm, up, down = (
            self._name(f"{kind}_{part}", within, j) for part in ("norm", "up", "down")
        )
        return Merger(
            norm=self._norm(norm, wide if norm_after else self._hidden),
            up=maker.linear(up, wide, wide, bias=True, split=0),
            down=maker.linear(down, self._out_width, wide, bias=True, split=1),
            count=count,
            norm_after=norm_after,
        )


class _AudioReader(_Reader):
    """Reads [audio] once and makes the tower."""

    section = "audio"
    probe = "conv1"

    def tower(self) -> AudioTower:
        """Return the tower."""
        hidden, rows = self._hidden, self._size("rows")
        projector = self._maker.name("projector")
        return AudioTower(
            kinds=("audio",),
            hidden=hidden,
            width=self._width,
            heads=self._heads,
            mels=self._size("mels"),
            max_rows=rows,
            pool=self._size("pool"),
            conv1=self._convolution("conv1", self._size("mels")),
            conv2=self._convolution("conv2", hidden),
            act=self._act,
            positions=Weight(f"{self._name('pos')}.weight", (rows, hidden)),
            layers=tuple(self._layer(index, self._attention) for index in range(self._layers)),
            norm=self._norm(self._name("final_norm"), hidden),
            projector=self._maker.linear(projector, self._width, hidden, bias=True, split=0),
        )

    def _convolution(self, key: str, channels: int) -> Linear:
        name = self._name(key)
        weight = Weight(f"{name}.weight", (self._hidden, channels, TAPS))
        return Linear(weight, Weight(f"{name}.bias", (self._hidden,)))

    def _attention(self, within: str) -> RaggedAttention:
        dim = self._hidden // self._heads
        heads, qkv = Heads(self._heads, self._heads, dim), self._split(within, key_bias=False)
        return RaggedAttention(heads, qkv, self._out(within), dim**-0.5)


_READERS: Mapping[str, type[_PatchReader] | type[_AudioReader]] = {
    "vision": _PatchReader,
    "audio": _AudioReader,
}
