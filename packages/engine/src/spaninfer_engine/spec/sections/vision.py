"""[vision] -> the tower that sees images and videos."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Literal, cast

from spaninfer_engine.spec.attention_nodes import (
    Axes,
    AxialRope,
    FusedQkv,
    HeadNorms,
    Heads,
    RaggedAttention,
    RopeStyle,
    SplitQkv,
)
from spaninfer_engine.spec.mlp_nodes import GatedMLP, PlainMLP
from spaninfer_engine.spec.scope import Scope
from spaninfer_engine.spec.sections.resampler import read_resampler
from spaninfer_engine.spec.sections.tower_reader import TowerReader
from spaninfer_engine.spec.tower_nodes import (
    Merger,
    PatchPositions,
    PatchTower,
    Resampler,
    Square,
    Stretch,
)
from spaninfer_engine.spec.weight_nodes import Linear, Weight


class VisionReader(TowerReader):
    """Reads [vision] once and makes the tower."""

    section = "vision"
    probe = "patch"

    def __init__(self, scope: Scope, names: Collection[str] | None, width: int) -> None:
        super().__init__(scope, names, width)
        self._layers = self._layers_used()
        self._patch = self._size("patch")
        self._tile = self._tile_side()
        self._merge = self._merged_side()
        self._out_width = scope.optional_integer("vision", "out") or width

    def tower(self) -> PatchTower:
        """Return the tower."""
        window, full = self._window(), self._indices("full_layers")
        return PatchTower(
            kinds=("image", "video") if self.scope.flag("vision", "videos") else ("image",),
            hidden=self.hidden,
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
            pre_norm=self.maker.norm(self.maker.name("pre_norm", self.maker.prefix), self.hidden),
            norm=self.maker.norm(self.maker.name("final_norm", self.maker.prefix), self.hidden),
            window=window,
            deepstack=tuple(
                (layer, self._mlp_merger("deep", self.maker.prefix, norm_after=True, j=j))
                for j, layer in enumerate(self._indices("deepstack"))
            ),
            tile=self._tile,
            extra=self._extra(),
            class_token=self._class_token(),
            class_first=self.scope.flag("vision", "class_first"),
        )

    @property
    def surplus(self) -> tuple[str, ...]:
        """The patterns of stored layers that the tower does not use."""
        layer = self.maker.prefix + self.maker.name("layer")
        further = range(self._layers, self._size("layers"))
        return tuple(f"{layer.format(i=i)}*" for i in further)

    def _layers_used(self) -> int:
        """Return how many layers there are up to the one whose output is the tower's."""
        last, layers = self._size("output_layer"), self._size("layers")
        used = last if last > 0 else layers + 1 + last
        if not 0 < used <= layers:
            problem = f"{last} is no layer of {layers}"
            raise self.scope.error("vision", "output_layer", problem)
        return used

    def _tile_side(self) -> int | None:
        """Return the patches of a tile's side; what is left of its pixels is not seen."""
        pixels = self.scope.optional_integer("vision", "tile")
        if pixels is not None and pixels < self._patch:
            problem = f"{pixels} pixels hold no patch of {self._patch}"
            raise self.scope.error("vision", "tile", problem)
        return None if pixels is None else pixels // self._patch

    def _merged_side(self) -> int:
        """Return the patches of a row's side."""
        rows = self.scope.optional_integer("vision", "tile_tokens")
        if rows is None:
            return self._size("merge")
        side = math.isqrt(rows)
        if self._tile is None or side * side != rows or self._tile % side:
            problem = f"{rows} tokens are no square that divides a tile of {self._tile} patches"
            raise self.scope.error("vision", "tile_tokens", f"{problem} a side")
        return self._tile // side

    def _extra(self) -> Weight | None:
        """Return the row behind every line of a picture."""
        name = self.maker.name("extra", suffix="")
        return Weight(name, (self._out_width,)) if name else None

    def _class_token(self) -> Weight | None:
        """Return the embedding of what attends beside a tile's patches."""
        name = self.maker.name("class", self.maker.prefix, suffix="")
        axes = 2 * self._pos_axes()  # of a batch, and of places
        return Weight(name, (*axes, self.hidden)) if name else None

    def _pos_axes(self) -> tuple[int, ...]:
        """Return the axes in front of the table's own."""
        return (1,) if self.scope.flag("vision", "pos_batched") else ()

    def _embedding(self) -> Linear:
        """Return the patch embedding: stored as a convolution, in which no two patches overlap."""
        patch = self._patch
        name = self.name("patch")
        has_frames = self._tile is None and self.scope.flag("vision", "videos")
        frames = (self._size("temporal"),) if has_frames else ()
        pixels: tuple[int, ...] = self._size("channels"), *frames, patch, patch
        if self.scope.flag("vision", "patch_flat"):
            pixels = (math.prod(pixels),)
        bias = self.scope.flag("vision", "patch_bias")
        return Linear(
            Weight(f"{name}.weight", (self.hidden, *pixels)),
            Weight(f"{name}.bias", (self.hidden,)) if bias else None,
        )

    def _positions(self) -> PatchPositions | None:
        rows = self.scope.optional_integer("vision", "pos_table")
        if rows is None and self._tile is not None:
            rows = self._tile**2
        if rows is None:
            return None
        side = math.isqrt(rows)
        if side * side != rows:
            raise self.scope.error("vision", "pos_table", f"{rows} rows are no square")
        more = 0 if self._class_token() is None else 1
        shape = *self._pos_axes(), rows + more, self.hidden
        table = Weight(self.whole_name("pos"), shape)
        return PatchPositions(table, Square(side, self._stretch()))

    def _stretch(self) -> Stretch:
        return cast(Stretch, self.scope.text("vision", "pos_stretch"))

    def _window(self) -> int | None:
        window = self.scope.optional_integer("vision", "window")
        if window is not None and window < self._patch * self._merge:
            problem = f"{window} pixels hold no {self._merge} patches of {self._patch}"
            raise self.scope.error("vision", "window", problem)
        return None if window is None else window // self._merge // self._patch * self._merge

    def _indices(self, key: str) -> tuple[int, ...]:
        indices = cast(tuple[int, ...], self.scope.value("vision", key))
        if any(not 0 <= index < self._layers for index in indices):
            problem = f"{list(indices)} are not all layers of 0 to {self._layers - 1}"
            raise self.scope.error("vision", key, problem)
        if len(set(indices)) < len(indices) or list(indices) != sorted(indices):
            raise self.scope.error("vision", key, f"{list(indices)} do not ascend")
        return indices

    def _attention(self, in_windows: bool, within: str) -> RaggedAttention:
        dim = self.hidden // self._heads
        return RaggedAttention(
            heads=Heads(self._heads, self._heads, dim),
            qkv=self._qkv(within),
            out=self._out(within),
            scale=dim**-0.5,
            positions=self._rope(dim),
            norms=self._head_norms(within),
            in_windows=in_windows,
        )

    def _head_norms(self, within: str) -> HeadNorms | None:
        """Return the norms of all queries and of all keys of a patch."""
        if not self.scope.flag("vision", "qk_norm"):
            return None
        eps = self.scope.optional_number("vision", "qk_norm_eps")
        q, k = (
            self.norm(self.name(key, within), self.hidden, "rms", eps)
            for key in ("q_norm", "k_norm")
        )
        return HeadNorms(q, k, joint=True)

    def _rope(self, dim: int) -> AxialRope | None:
        theta = self.scope.optional_number("vision", "theta")
        if theta is None:
            return None
        if dim % 4:
            problem = (
                f"heads of {dim} channels cannot turn half by row and half by column, in pairs"
            )
            raise self.scope.error("vision", "heads", problem)
        style, axes = (self.scope.text("vision", f"theta_{key}") for key in ("style", "axes"))
        return AxialRope(dim, theta, cast(RopeStyle, style), cast(Axes, axes))

    def _qkv(self, within: str) -> SplitQkv | FusedQkv:
        hidden, layout = self.hidden, self.scope.text("vision", "qkv")
        said = self.scope.value("vision", "qkv_bias")
        bias = self._bias if said is None else bool(said)
        if layout == "split":
            return self._split(within, bias=bias, key_bias=bias)
        parts = (hidden, hidden, hidden) if layout == "concat" else ()
        name = self.maker.name("qkv", within)
        fused = self.maker.linear(name, 3 * hidden, hidden, bias=bias, split=0, parts=parts)
        return FusedQkv(fused, cast(Literal["concat", "grouped"], layout))

    def _mlp(self, within: str) -> GatedMLP | PlainMLP:
        if self.scope.text("vision", "mlp") == "plain":
            return super()._mlp(within)
        gate, up = self._up(within, "gate"), self._up(within, "up")
        return GatedMLP(gate, up, self._down(within), self._act)

    def _merger(self) -> Merger | Resampler:
        kind, maker = self.scope.text("vision", "merger"), self.maker
        if kind == "resampler":
            return read_resampler(self, self._out_width, self._stretch())
        suffix = "" if kind == "mean" else ".weight"
        down = maker.name("merger_down")
        within = maker.prefix_of("merger_prefix", down + suffix)
        if kind == "mlp":
            return self._mlp_merger("merger", within, norm_after=False)
        if kind == "mean":
            return self._mean_merger(within, down)
        if kind == "join":
            return self._joining_merger(within, down)
        if kind == "shuffle":
            return self._projected_merger(down)
        if kind == "linear":
            return self._linear_merger(within, down)
        return self._narrow_merger(within, down, is_gated=kind == "gated")

    def _linear_merger(self, within: str, down: str) -> Merger:
        """Return a projection of a row's patches side by side."""
        out, count = self._out_width, self._merge**2
        bias = self.scope.flag("vision", "merger_bias")
        projection = self.maker.linear(within + down, out, count * self.hidden, bias=bias, split=1)
        return Merger(norm=None, up=None, down=projection, count=count)

    def _narrow_merger(self, within: str, down: str, *, is_gated: bool) -> Merger:
        """Return a merger whose MLP is as wide as its rows, unless it says how wide."""
        maker, out, count = self.maker, self._out_width, self._merge**2
        wide, bias = count * self.hidden, self.scope.flag("vision", "merger_bias")
        eps = self.scope.optional_number("vision", "merger_eps")
        norm = maker.name("merger_norm", within)
        inner = self.scope.optional_integer("vision", "merger_inner") or out
        if is_gated and inner % 2:
            problem = f"{inner} channels have no halves"
            raise self.scope.error("vision", "merger_inner", problem)
        read = inner // 2 if is_gated else inner
        return Merger(
            norm=maker.norm(norm, wide, "layer", eps, bias=True),
            up=maker.linear(self.name("merger_up", within), inner, wide, bias=bias, split=0),
            down=maker.linear(within + down, out, read, bias=bias, split=1),
            count=count,
            act="silu" if is_gated else "gelu",
            norm_after=True,
            is_gated=is_gated,
        )

    def _joining_merger(self, within: str, down: str) -> Merger:
        """Return a merger that makes one patch of a row's, whose MLP is as wide as its rows."""
        maker, hidden, out, count = self.maker, self.hidden, self._out_width, self._merge**2
        bias = self.scope.flag("vision", "merger_bias")
        join = maker.linear(self.name("merger_join", within), hidden, count * hidden)
        name = self.name("merger_norm", within)
        eps = self.scope.optional_number("vision", "merger_eps")
        return Merger(
            norm=maker.norm(name, hidden, eps=eps),
            up=maker.linear(self.name("merger_up", within), out, hidden, bias=bias, split=0),
            down=maker.linear(within + down, out, out, bias=bias, split=1),
            count=count,
            join=join,
        )

    def _projected_merger(self, down: str) -> Merger:
        """Return a merger whose MLP ends with its activation, in front of a projection."""
        maker, count = self.maker, self._merge**2
        bias, wide = self.scope.flag("vision", "merger_bias"), count * self.hidden
        inner, out = (
            self.scope.optional_integer("vision", f"merger_{key}") or self.hidden
            for key in ("inner", "out")
        )
        project = maker.name("merger_project")
        within = maker.prefix_of("merger_prefix", f"{project}.weight")
        return Merger(
            norm=None,
            up=maker.linear(self.name("merger_up"), inner, wide, bias=bias, split=0),
            down=maker.linear(maker.prefix + down, out, inner, bias=bias, split=1),
            count=count,
            project=maker.linear(within + project, self._out_width, out, bias=bias),
        )

    def _mean_merger(self, within: str, down: str) -> Merger:
        """Return a merger whose projection is stored [in, out], under a name without an ending."""
        name = within + self.maker.name("merger_norm")
        norm = self.maker.norm(name, self.hidden, "rms")
        assert norm is not None
        return Merger(
            norm=replace(norm, plus_one=True),
            up=None,
            down=Linear(Weight(within + down, (self.hidden, self._out_width)), transposed=True),
            count=self._merge**2,
            norm_after=True,
            is_mean=True,
        )

    def _mlp_merger(self, kind: str, within: str, *, norm_after: bool, j: int = 0) -> Merger:
        count, maker = self._merge**2, self.maker
        wide = count * self.hidden
        norm, up, down = (self.name(f"{kind}_{part}", within, j) for part in ("norm", "up", "down"))
        return Merger(
            norm=self.norm(norm, wide if norm_after else self.hidden),
            up=maker.linear(up, wide, wide, bias=True, split=0),
            down=maker.linear(down, self._out_width, wide, bias=True, split=1),
            count=count,
            norm_after=norm_after,
        )
