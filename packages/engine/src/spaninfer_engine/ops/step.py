"""What the operators of one step read besides their inputs; made anew for every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

A = TypeVar("A")  # a backend's array: numpy.ndarray, torch.Tensor

Ints = NDArray[np.int32]


class SpanCache(NamedTuple, Generic[A]):
    """Keys [N S L K D] and values [N S L K E] of one cache group; N is the layer in the group.

    Where the values are the first channels of the keys (MLA) they are a view of them. In memory a
    span of all layers is contiguous: [S N L K (D or E)], see `ops.table.Ops.cache`.
    """

    keys: A
    values: A


class Rotation(NamedTuple, Generic[A]):
    """Cosines and sines [T D/2] that one rotary embedding applies to each row."""

    cos: A
    sin: A


class Rows(NamedTuple, Generic[A]):
    """Rows of hidden states that come from elsewhere: vectors[n C] belong to rows[n]."""

    rows: A
    vectors: A


@dataclass(frozen=True, slots=True)
class Step(Generic[A]):
    """The context of one step: T rows, one per token, slice after slice.

    Index arrays stay on the host as numpy (`position`, `request`, `bounds`, `tables`) beside what
    operators consume as the backend's arrays; a backend that wants the former on its device
    copies them once per step in `Ops.prepare`.
    """

    token_ids: A  # [T]; from the host, or gathered from a token buffer of the device
    position: Ints  # [T] index of the token in its request: decides what it may see
    request: Ints  # [T] row of the span tables
    positions: A  # [axes T] what position embeddings see; in text, all axes are `position`
    tables: tuple[Ints, ...]  # per cache group [R M]: the spans of each request in order
    bounds: Ints  # [R + 1] where the rows of each slice begin; its rows have rising positions
    caches: tuple[SpanCache[A], ...]  # per cache group
    written: tuple[tuple[A, A], ...]  # per cache group: span [T] and place in it [T] of each row
    rotations: tuple[Rotation[A], ...]  # per rotary embedding of the program
    wanted: A  # [W] rows whose logits are wanted
    replaced: Rows[A] | None = None  # media embeddings take the place of token embeddings
    added: Mapping[int, Rows[A]] | None = None  # by layer: added to its output (deepstack)
    plan: Any = None  # what `Ops.prepare` made once for all layers; only its backend reads it

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.position)

    @property
    def has_media(self) -> bool:
        """Do rows come from elsewhere?"""
        return self.replaced is not None or self.added is not None


class Run(NamedTuple):
    """Rows [first, last) of one request, at positions [start, stop)."""

    first: int
    last: int
    request: int
    start: int
    stop: int


def runs(step: Step[A]) -> Iterator[Run]:
    """Yield the slices of a step, for backends that compute attention one by one."""
    bounds = step.bounds.tolist()
    for first, last in pairwise(bounds):
        start = int(step.position[first])
        yield Run(first, last, int(step.request[first]), start, start + last - first)
