"""The common part of readers of towers: sizes, names, layers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar, cast

from spaninfer_engine.spec.maker import Maker, NormKind, NormRule
from spaninfer_engine.spec.nodes import (
    ActivationName,
    GatedMLP,
    Layer,
    Linear,
    Norm,
    Norms,
    PlainMLP,
    RaggedAttention,
    SplitQkv,
)
from spaninfer_engine.spec.scope import Scope


class TowerReader:
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
