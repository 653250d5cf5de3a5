"""The way of tokens whose text is made in another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from spaninfer_engine.request.logprobs import LogprobAt
from spaninfer_engine.schedule.sequence import Ended, SequenceState


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class RelayedRequest:
    """A request whose tokens a relay takes, as long as anybody holds it."""

    seqs: tuple[SequenceState, ...]

    @property
    def num_output_tokens(self) -> int:
        """The number of tokens that its choices have sampled so far."""
        return sum(len(seq.output_ids) for seq in self.seqs)


class TokenBatch(Protocol):
    """Tokens and ends of many requests that travel together."""

    def send(self) -> None:
        """Send what was added, if anything was; must neither wait nor raise."""
        ...


class SequenceRelay(Protocol):
    """Takes the tokens of one sequence, in order; must neither wait nor raise."""

    def push(self, token: int, logprob: LogprobAt | None) -> None:
        """Take a token."""
        ...

    def end(self, ended: Ended) -> None:
        """Take the end; nothing follows."""
        ...


class TokenRelay(Protocol):
    """Takes the tokens of one request, in place of a queue of outputs.

    It is called by one thread at a time.
    """

    @property
    def batch(self) -> TokenBatch:
        """The batch that its tokens are added to; sent when a step's events are through."""
        ...

    @property
    def is_read_at_end(self) -> bool:
        """True if its tokens are not looked at before the end, or enough of them."""
        ...

    def sequence(self, seq: SequenceState) -> SequenceRelay:
        """Return what takes the tokens of one of its sequences; called once for each."""
        ...
