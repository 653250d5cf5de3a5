"""The leaves of a model tree: checkpoint tensors, linear layers and norms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Weight:
    """One checkpoint tensor, and how tensor parallelism cuts it."""

    name: str
    shape: tuple[int, ...]
    split: int | None = None  # the axis that is cut; None: every rank holds the whole
    parts: tuple[int, ...] = ()  # fused tensors: sizes along `split` that are cut one by one


@dataclass(frozen=True, slots=True)
class Ones:
    """The weight of a norm that has none: no checkpoint stores it."""

    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """The stand-in for a tensor's name in listings."""
        return "ones"


@dataclass(frozen=True, slots=True)
class Linear:
    """x @ weight.T + bias, times `scale`; x @ weight + bias where it is stored `transposed`."""

    weight: Weight  # [out, in], or [in, out]
    bias: Weight | None = None  # [out]
    transposed: bool = False
    scale: Weight | None = None  # [out]


@dataclass(frozen=True, slots=True)
class Norm:
    """Root-mean-square or layer norm over the last axis."""

    kind: Literal["rms", "layer"]
    eps: float
    weight: Weight | Ones  # [C]
    bias: Weight | None = None
    plus_one: bool = False  # the weight counts from one (Gemma)
