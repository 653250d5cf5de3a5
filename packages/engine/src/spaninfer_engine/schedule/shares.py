"""The shares of clients: how many tokens of each the engine has computed lately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from spaninfer_engine.schedule.sequence import SequenceState
from spaninfer_engine.step.plan import Slice

PERIOD_S = 1.0
"""Clients that were computed one behind the other share the engine for so long, or twice that."""


class Shares:
    """Tokens computed by client, in the period that runs and the one before it.

    >>> shares = Shares()
    >>> for client, num_tokens, now in (("ann", 3, 0.5), ("bob", 5, 1.5), ("bob", 1, 2.6)):
    ...     shares.add(client, num_tokens, now)
    ...     print(dict(shares.had))
    {'ann': 3}
    {'ann': 3, 'bob': 5}
    {'bob': 6}
    """

    def __init__(self) -> None:
        self._had, self._period = Counter[str](), Counter[str]()
        self._until_s = PERIOD_S

    @property
    def had(self) -> Mapping[str, int]:
        """Tokens by client; clients that have had none lately are missing."""
        return self._had

    def add(self, client: str, num_tokens: int, now: float) -> None:
        """Count tokens of a client that are computed now."""
        if now >= self._until_s:
            is_next = now < self._until_s + PERIOD_S
            self._had, self._period = self._period if is_next else Counter(), Counter()
            self._until_s = now + PERIOD_S
        self._had[client] += num_tokens
        self._period[client] += num_tokens

    def add_step(self, slices: Iterable[Slice], seqs: Iterable[SequenceState], now: float) -> None:
        """Count what a step computes."""
        step = Counter[str]()
        for part, seq in zip(slices, seqs, strict=True):
            step[seq.client] += part.num_tokens
        for client, num_tokens in step.items():
            self.add(client, num_tokens, now)
