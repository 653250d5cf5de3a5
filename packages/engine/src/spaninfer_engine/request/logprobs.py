"""Log-probabilities of many tokens as arrays, and as entries that are made when looked at.

100,000 tokens with 20 most likely each take 17 MB so, and 250 MB as objects. To make those of 64
sequences with 5 most likely each took a step of the engine 0.3 ms, a third of its time on a GPU.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import NamedTuple, Protocol, Self, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.request.request import TokenLogprob

Ids: TypeAlias = NDArray[np.int32]
Values: TypeAlias = NDArray[np.float32]


_MADE_AT_ONCE = 128  # entries, while an iteration goes over all: one by one take twice as long


def num_values(entries: Sequence[TokenLogprob]) -> int:
    """Return how many log-probabilities there are, those of the most likely tokens included."""
    if isinstance(entries, _Entries):  # without making an object of each
        return entries.num_values
    return sum(1 + len(each.top) for each in entries)


class _Entries(Sequence[TokenLogprob]):
    """A sequence of TokenLogprob, which are made when they are looked at; equal to any other that
    holds the same.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def num_values(self) -> int:
        """The number of log-probabilities, those of the most likely tokens included."""

    def __iter__(self) -> Iterator[TokenLogprob]:
        return (self[at] for at in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(
            mine == theirs for mine, theirs in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none


@dataclass(frozen=True, slots=True, eq=False)
class TokenLogprobs(_Entries):
    """The log-probabilities of T tokens, with the K most likely tokens in place of each."""

    token_ids: Ids  # [T]
    logprobs: Values  # [T]
    ranks: Ids  # [T]
    top_ids: Ids  # [T K]
    top: Values  # [T K]

    @classmethod
    def empty(cls, num_tokens: int, count: int) -> Self:
        """Return arrays to be filled in, for that many tokens with `count` most likely each."""
        return cls(
            np.empty(num_tokens, np.int32),
            np.empty(num_tokens, np.float32),
            np.empty(num_tokens, np.int32),
            np.empty((num_tokens, count), np.int32),
            np.empty((num_tokens, count), np.float32),
        )

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return parts with equal K as one, in their order; there is at least one."""
        return cls(
            np.concatenate([part.token_ids for part in parts]),
            np.concatenate([part.logprobs for part in parts]),
            np.concatenate([part.ranks for part in parts]),
            np.concatenate([part.top_ids for part in parts]),
            np.concatenate([part.top for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.token_ids)

    @overload
    def __getitem__(self, at: int) -> TokenLogprob: ...

    @overload
    def __getitem__(self, at: slice) -> Self: ...

    def __getitem__(self, at: int | slice) -> TokenLogprob | Self:
        if isinstance(at, slice):
            return self.rows(at)
        return self.entry(at, self.top.shape[1])

    def __iter__(self) -> Iterator[TokenLogprob]:
        for first in range(0, len(self), _MADE_AT_ONCE):
            part = self.rows(slice(first, first + _MADE_AT_ONCE))
            columns = (part.token_ids, part.logprobs, part.ranks, part.top_ids, part.top)
            for token_id, logprob, rank, top_ids, top in zip(
                *(column.tolist() for column in columns), strict=True
            ):
                yield TokenLogprob(token_id, logprob, rank, _pairs(top_ids, top))

    def rows(self, at: slice | Sequence[int] | NDArray[np.intp]) -> Self:
        """Return the arrays of some of the tokens."""
        if not isinstance(at, slice):
            at = np.array(at, np.intp)  # once, not for each of the columns
        return type(self)(
            self.token_ids[at], self.logprobs[at], self.ranks[at], self.top_ids[at], self.top[at]
        )

    def with_count(self, count: int) -> Self:
        """Return it with `count` most likely tokens: fewer of them, or ids of -1 behind them."""
        more = ((0, 0), (0, max(count - self.top.shape[1], 0)))
        return replace(
            self,
            top_ids=np.pad(self.top_ids[:, :count], more, constant_values=-1),
            top=np.pad(self.top[:, :count], more),
        )

    @property
    def num_values(self) -> int:
        """The number of log-probabilities, those of the most likely tokens included."""
        return len(self) + self.top.size

    def entry(self, at: int, count: int) -> TokenLogprob:
        """Return the entry of a token, with up to `count` most likely ones.

        Ids below 0 stand for none: fewer tokens were possible.
        """
        top_ids, top = self.top_ids[at, :count].tolist(), self.top[at, :count].tolist()
        return TokenLogprob(
            self.token_ids.item(at),
            self.logprobs.item(at),
            self.ranks.item(at),
            _pairs(top_ids, top),
        )


def _pairs(top_ids: list[int], top: list[float]) -> tuple[tuple[int, float], ...]:
    return tuple([pair for pair in zip(top_ids, top, strict=True) if pair[0] >= 0])


class LogprobRows(Protocol):
    """Entries of tokens by their numbers."""

    def rows(self, at: Sequence[int]) -> TokenLogprobs:
        """Return the arrays of some of the tokens."""
        ...

    def entry(self, at: int, count: int) -> TokenLogprob:
        """Return the entry of a token, with up to `count` most likely ones."""
        ...


class StepLogprobs:
    """The log-probabilities of a step's tokens, of which arrays are made when somebody looks.

    While the loop makes them it launches no step, and nothing that it needs for this is in the
    CPU's caches: seven tokens took 35 µs of a step, and take 19 (a core of an EPYC, 2026-11-29).
    """

    __slots__ = ("_arrays", "_make")

    def __init__(self, make: Callable[[], TokenLogprobs]) -> None:
        self._make: Callable[[], TokenLogprobs] | None = make
        self._arrays: TokenLogprobs | None = None

    def _made(self) -> TokenLogprobs:
        """Return the arrays; of two threads that look at once, each may make them."""
        make = self._make
        if make is not None:
            self._arrays = make()
            self._make = None
        assert self._arrays is not None, "they are there before `make` is not"
        return self._arrays

    def rows(self, at: Sequence[int]) -> TokenLogprobs:
        """Return the arrays of some of the tokens."""
        return self._made().rows(at)

    def entry(self, at: int, count: int) -> TokenLogprob:
        """Return the entry of a token, with up to `count` most likely ones."""
        return self._made().entry(at, count)


class LogprobAt(NamedTuple):
    """The place of a token's entry: its number in arrays, and how many most likely ones it has."""

    arrays: LogprobRows
    number: int
    num_top: int

    @property
    def entry(self) -> TokenLogprob:
        """The entry as an object."""
        return self.arrays.entry(self.number, self.num_top)


def gathered(places: Sequence[LogprobAt]) -> TokenLogprobs:
    """Return the entries in these places, one at least, as arrays of their own."""
    count = max(place.num_top for place in places)
    parts = [
        (own := list(group))[0].arrays.rows([place.number for place in own])
        for _, group in groupby(places, key=lambda place: id(place.arrays))
    ]
    same = [part if part.top.shape[1] == count else part.with_count(count) for part in parts]
    return same[0] if len(same) == 1 else TokenLogprobs.joined(same)


@dataclass(slots=True, eq=False)  # a frozen one takes twice as long to make, in every step
class SampledLogprobs(_Entries):
    """The log-probabilities of sampled tokens, one after the other."""

    places: tuple[LogprobAt, ...]

    @classmethod
    def joined(cls, parts: Iterable[Sequence[TokenLogprob]]) -> Sequence[TokenLogprob]:
        """Return the entries of all parts, each () or one of these; () if none has any."""
        kept = [part.places for part in parts if isinstance(part, cls)]
        return cls(tuple(chain.from_iterable(kept))) if kept else ()

    @property
    def num_values(self) -> int:
        """The number of log-probabilities, those of the most likely tokens included."""
        return sum([1 + place.num_top for place in self.places])

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, at: int) -> TokenLogprob: ...

    @overload
    def __getitem__(self, at: slice) -> Self: ...

    def __getitem__(self, at: int | slice) -> TokenLogprob | Self:
        if isinstance(at, slice):
            return type(self)(self.places[at])
        return self.places[at].entry
