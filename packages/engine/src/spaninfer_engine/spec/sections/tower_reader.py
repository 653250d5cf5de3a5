"""The common part of readers of towers: sizes, names, layers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import ClassVar, cast

from spaninfer_engine.spec.attention_nodes import RaggedAttention, SplitQkv
from spaninfer_engine.spec.maker import Maker, NormKind, NormRule
from spaninfer_engine.spec.mlp_nodes import ActivationName, GatedMLP, PlainMLP
from spaninfer_engine.spec.nodes import Layer, Norms
from spaninfer_engine.spec.scope import Scope
from spaninfer_engine.spec.weight_nodes import Linear, Norm, Weight


class TowerReader:
    """The common part of readers of towers: the section, its names, and layers."""

    section: ClassVar[str]
    probe: ClassVar[str]  # the weight by which a checkpoint shows that the tower is there

    def __init__(self, scope: Scope, names: Collection[str] | None, width: int) -> None:
        self.scope, self._width = scope, width
        kind = cast(NormKind, scope.text(self.section, "norm"))
        rule = NormRule(kind, scope.number(self.section, "eps"), bias=kind == "layer")
        place = f"{self.section}.weights"
        self.maker = Maker(scope, names, rule, section=place, probe=self.probe)
        self.hidden, self._heads = self._size("hidden"), self._size("heads")
        self._layers = self._size("layers")
        self._act = cast(ActivationName, scope.text(self.section, "act"))
        self._bias = scope.flag(self.section, "bias")
        if self.hidden % self._heads:
            problem = f"{self.hidden} channels do not make {self._heads} heads"
            raise scope.error(self.section, "heads", problem)

    @property
    def is_there(self) -> bool:
        """Return True if the checkpoint holds the tower, or none is at hand."""
        first = self.maker.name(self.probe, self.maker.prefix)
        return self.maker.names is None or self.maker.has(f"{first}.weight")

    @property
    def surplus(self) -> tuple[str, ...]:
        """The patterns of tensors beside the tower's that it does not use."""
        return ()

    def _size(self, key: str) -> int:
        return self.scope.integer(self.section, key)

    def _layer(self, index: int, attention: Callable[[str], RaggedAttention]) -> Layer:
        within = self.maker.prefix + self.maker.name("layer").format(i=index)
        return Layer(
            attention=attention(within),
            mlp=self._mlp(within),
            norms=Norms(
                attention_pre=self.norm(self.maker.name("norm1", within), self.hidden),
                mlp_pre=self.norm(self.maker.name("norm2", within), self.hidden),
            ),
        )

    def _mlp(self, within: str) -> GatedMLP | PlainMLP:
        return PlainMLP(self._up(within, "up"), self._down(within), self._act)

    def _up(self, within: str, key: str) -> Linear:
        name, ffn = self.maker.name(key, within), self._size("ffn")
        return self.maker.linear(name, ffn, self.hidden, bias=self._bias, split=0)

    def _down(self, within: str) -> Linear:
        name, ffn = self.maker.name("down", within), self._size("ffn")
        down = self.maker.linear(name, self.hidden, ffn, bias=self._bias, split=1)
        return replace(down, scale=self._scale("scale2", within))

    def _out(self, within: str) -> Linear:
        name = self.maker.name("o", within)
        out = self.maker.linear(name, self.hidden, self.hidden, bias=self._bias, split=1)
        return replace(out, scale=self._scale("scale1", within))

    def _scale(self, key: str, within: str) -> Weight | None:
        """Return the factors of a layer's channels, before they are added."""
        name = self.maker.name(key, within, suffix="")
        return Weight(name, (self.hidden,)) if name else None

    def name(self, key: str, within: str | None = None, j: int = 0, suffix: str = ".weight") -> str:
        """Return the name of a part that the tower has; SpecError where the spec says none."""
        prefix = self.maker.prefix if within is None else within
        name = self.maker.name(key, prefix, suffix)
        if name == "":
            problem = "the tower has such a part: name it"
            raise self.scope.error(f"{self.section}.weights", key, problem)
        return name.format(j=j)

    def whole_name(self, key: str) -> str:
        """Return the name of a tensor whose key says its ending, too."""
        return self.name(key, suffix="")

    def norm(
        self, name: str, channels: int, kind: NormKind | None = None, eps: float | None = None
    ) -> Norm:
        """Return a norm that the tower has."""
        norm = self.maker.norm(name, channels, kind, eps)
        assert norm is not None, name
        return norm

    def _split(self, within: str, *, bias: bool, key_bias: bool) -> SplitQkv:
        hidden, maker = self.hidden, self.maker
        return SplitQkv(
            *(
                maker.linear(
                    maker.name(key, within),
                    hidden,
                    hidden,
                    bias=key_bias if key == "k" else bias,
                    split=0,
                )
                for key in ("q", "k", "v")
            )
        )
