"""Weights by the names a spec gives them: the smallest nodes, put together in one place."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, cast

from spaninfer_engine.spec.scope import Scope
from spaninfer_engine.spec.weight_nodes import Linear, Norm, Weight

NormKind = Literal["rms", "layer"]


@dataclass(frozen=True, slots=True)
class NormRule:
    """The default kind of norms."""

    kind: NormKind
    eps: float
    bias: bool  # of layer norms
    plus_one: bool = False


class Maker:
    """Makes weights, linears and norms, named by a section of the spec.

    `probe` is the key of a weight by which the checkpoint shows its prefix. `names` are the tensors
    a checkpoint holds, where one is at hand. They only choose among alternatives that the spec
    declares; without them, the first alternative is meant.
    """

    def __init__(
        self,
        scope: Scope,
        names: Collection[str] | None,
        norms: NormRule,
        *,
        section: str = "weights",
        probe: str = "embed",
    ) -> None:
        self.scope = scope
        self.names = None if names is None else frozenset(names)
        self._norms, self._section = norms, section
        self.prefix = self._prefix(probe)

    def name(self, key: str, within: str = "", suffix: str = ".weight") -> str:
        """Return a weight's whole name without suffix, "" where the spec says there is none."""
        options = [within + option if option else "" for option in self._options(key)]
        if self.names is not None:
            for option in options:
                if option and option + suffix in self.names:
                    return option
        return options[0]

    def has(self, name: str) -> bool:
        """Return True if the checkpoint holds a tensor of this name; False without a checkpoint."""
        return self.names is not None and name in self.names

    def linear(
        self,
        name: str,
        rows: int,
        columns: int,
        *,
        bias: bool = False,
        split: int | None = None,
        parts: tuple[int, ...] = (),
    ) -> Linear:
        """Return a projection of `columns` to `rows`; cut by columns, its bias stays whole."""
        weight = Weight(f"{name}.weight", (rows, columns), split, parts)
        if not bias:
            return Linear(weight)
        by_rows = split == 0
        return Linear(
            weight,
            Weight(f"{name}.bias", (rows,), 0 if by_rows else None, parts if by_rows else ()),
        )

    def norm(
        self,
        name: str,
        channels: int,
        kind: NormKind | None = None,
        eps: float | None = None,
        *,
        bias: bool | None = None,
    ) -> Norm | None:
        """Return a norm like those of [norm] but for what is given; None for an empty name."""
        if not name:
            return None
        kind = kind or self._norms.kind
        has_bias = kind == "layer" and (self._norms.bias if bias is None else bias)
        return Norm(
            kind=kind,
            eps=self._norms.eps if eps is None else eps,
            weight=Weight(f"{name}.weight", (channels,)),
            bias=Weight(f"{name}.bias", (channels,)) if has_bias else None,
            plus_one=self._norms.plus_one,
        )

    def prefix_of(self, key: str, probe: str) -> str:
        """Return what precedes some names: of the key's alternatives, the one with the weight
        `probe`; where the spec says none, what precedes all.
        """
        options = self.scope.texts(self._section, key)
        if not any(options):
            return self.prefix
        return next((each for each in options if self.has(each + probe)), options[0])

    def _options(self, key: str) -> tuple[str, ...]:
        return self.scope.texts(self._section, key) or ("",)

    def _prefix(self, probe: str) -> str:
        prefixes = self.scope.texts(self._section, "prefix") or ("",)
        table = self._options(probe)[0]
        for prefix in prefixes:
            if self.has(f"{prefix}{table}.weight"):
                return prefix
        return prefixes[0]


def norm_rule(scope: Scope) -> NormRule:
    """Return what [norm] says."""
    return NormRule(
        kind=cast(NormKind, scope.text("norm", "type")),
        eps=scope.number("norm", "eps"),
        bias=scope.flag("norm", "bias"),
        plus_one=scope.flag("norm", "plus_one"),
    )
