"""The scores of attention: what becomes of q.k before the softmax, and which keys are seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

AlibiKind: TypeAlias = Literal["plain", "scaled", "rounded"]


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scores of a token at position p over the KV cache: softcap(scale * q.k) + bias.

    It sees positions p - window < j <= p; where windows are `chunked`, p // window == j // window,
    j <= p. The bias of head h at position j is slope_h * j, times `scale` where it is "scaled" or
    "rounded", and rounded to bfloat16 before that where it is "rounded".
    """

    scale: float
    softcap: float | None = None
    window: int | None = None
    alibi: AlibiKind | None = None
    chunked: bool = False


@dataclass(frozen=True, slots=True)
class RaggedScoring:
    """Scores of a token at position p of its text: softcap(scale * q.k) + bias.

    It sees positions p - window < j <= p + ahead of its slice, or, where `in_windows`, of its
    patch's window in the tower; None: without that bound.
    """

    scale: float
    softcap: float | None = None
    window: int | None = None
    ahead: int | None = None
    in_windows: bool = False
