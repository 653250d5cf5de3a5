"""Log-probabilities of many tokens as arrays.

100,000 tokens with 20 most likely each take 17 MB so, and 250 MB as objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.request import TokenLogprob

Ids: TypeAlias = NDArray[np.int32]
Values: TypeAlias = NDArray[np.float32]


def num_values(entries: Sequence[TokenLogprob]) -> int:
    """Return how many log-probabilities there are, those of the most likely tokens included."""
    if isinstance(entries, TokenLogprobs):  # without making an object of each
        return len(entries) + entries.top.size
    return sum(1 + len(each.top) for each in entries)


@dataclass(frozen=True, slots=True, eq=False)
class TokenLogprobs(Sequence[TokenLogprob]):
    """The log-probabilities of T tokens, with the K most likely tokens in place of each.

    A sequence of TokenLogprob, which are made when they are looked at; equal to any other that
    holds the same.
    """

    token_ids: Ids  # [T]
    logprobs: Values  # [T]
    ranks: Ids  # [T]
    top_ids: Ids  # [T K]
    top: Values  # [T K]

    @classmethod
    def empty(cls, num_tokens: int, count: int) -> Self:
        """Return arrays to be filled in, for so many tokens with `count` most likely each."""
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
            return type(self)(
                self.token_ids[at],
                self.logprobs[at],
                self.ranks[at],
                self.top_ids[at],
                self.top[at],
            )
        return TokenLogprob(
            int(self.token_ids[at]),
            float(self.logprobs[at]),
            int(self.ranks[at]),
            tuple(zip(self.top_ids[at].tolist(), self.top[at].tolist(), strict=True)),
        )

    def __iter__(self) -> Iterator[TokenLogprob]:
        return (self[at] for at in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(
            mine == theirs for mine, theirs in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none
