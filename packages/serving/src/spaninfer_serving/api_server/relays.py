"""Relays of the engine's process: tokens of requests on their way to one API server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spaninfer_engine import FinishReason, SamplingParams
from spaninfer_engine.serving import Ended, LogprobAt, RelayedRequest, SequenceState

from spaninfer_serving.api_server.link import Link
from spaninfer_serving.api_server.messages import Begun, Ending, Tokens
from spaninfer_serving.api_server.records import fault_of, plain_entries, plain_logprobs

if TYPE_CHECKING:
    from spaninfer_engine import Engine

# Tokens of a choice that is read at its end which wait to travel together: text is made of them at
# once, and no other request of the API server goes on meanwhile.
READ_AT_END = 64


class ServerBatch:
    """News of the choices of one API server, as columns; one message per step.

    The lists are emptied when they were sent, and never replaced.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self.begun: list[Begun] = []
        self.numbers: list[int] = []
        self.tokens: list[int] = []
        self.with_entries: list[int] = []  # places in `tokens`
        self.endings: list[Ending] = []
        self._entries: list[LogprobAt] = []  # of tokens in these places
        self._entries_at_ends: list[LogprobAt] = []

    def add_entry(self, entry: LogprobAt) -> None:
        """Add the log-probability of the token that is added next."""
        self.with_entries.append(len(self.tokens))
        self._entries.append(entry)

    def add_entries_at_end(self, entries: Sequence[LogprobAt]) -> int | None:
        """Add those of tokens that travel with an end; return the number of the first, if any."""
        self._entries_at_ends += entries
        return len(self._entries_at_ends) - len(entries) if entries else None

    def send(self) -> None:
        """Send what was added, if anything was."""
        if not (self.numbers or self.endings):
            return
        entries = plain_entries([*self._entries, *self._entries_at_ends])
        columns = self.begun, self.numbers, self.tokens, self.with_entries, self.endings
        self._link.send(Tokens(*columns, entries))
        for column in (*columns, self._entries, self._entries_at_ends):
            column.clear()


class ChoiceRelay:
    """One choice of an API server's request: takes its tokens, and its end."""

    def __init__(
        self, batch: ServerBatch, seq: SequenceState, number: int, ended: Callable[[], None]
    ) -> None:
        self._batch, self._seq, self._number, self._ended = batch, seq, number, ended
        self._has_begun = False
        self._add_number, self._add_token = batch.numbers.append, batch.tokens.append

    def push(self, token: int, logprob: LogprobAt | None) -> None:
        """Take a token, which travels with this step's."""
        if not self._has_begun:
            self._begin()
        if logprob is not None:
            self._batch.add_entry(logprob)
        self._add_number(self._number)
        self._add_token(token)

    def end(self, ended: Ended) -> None:
        """Take the end, and the token that came with it."""
        tokens = [] if ended.token is None else [ended.token[1:]]
        self._end(ended, tokens)

    def _begin(self) -> None:
        self._has_begun = True
        seq = self._seq
        self._batch.begun.append(
            Begun(
                self._number,
                seq.seed,
                seq.cached_len,
                seq.request.arrived_s,
                seq.scheduled_s,
                seq.first_token_s,
                plain_logprobs(seq.prompt_logprobs()),
            )
        )

    def _end(self, ended: Ended, tokens: Sequence[tuple[int, LogprobAt | None]]) -> None:
        if not self._has_begun:
            self._begin()
        entries = [entry for _, entry in tokens if entry is not None]
        self._batch.endings.append(
            Ending(
                self._number,
                ended.reason.value,
                ended.usage.finished_s,
                [token for token, _ in tokens],
                self._batch.add_entries_at_end(entries),
                ended.token is not None,
                ended.matched,
                None if ended.error is None else fault_of(ended.error),
            )
        )
        self._ended()


class WholeChoiceRelay(ChoiceRelay):
    """A choice whose tokens are read at its end: they travel some at a time, the last with it."""

    def __init__(
        self, batch: ServerBatch, seq: SequenceState, number: int, ended: Callable[[], None]
    ) -> None:
        super().__init__(batch, seq, number, ended)
        self._waiting: list[tuple[int, LogprobAt | None]] = []

    def push(self, token: int, logprob: LogprobAt | None) -> None:
        """Take a token."""
        self._waiting.append((token, logprob))
        if len(self._waiting) >= READ_AT_END:
            for each in self._waiting:
                super().push(*each)
            self._waiting.clear()

    def end(self, ended: Ended) -> None:
        """Take the end, with all tokens that have not travelled."""
        last = [] if ended.token is None else [ended.token[1:]]
        self._end(ended, [*self._waiting, *last])


class RequestRelay:
    """One prompt of an API server's."""

    def __init__(
        self,
        batch: ServerBatch,
        key: int,
        sampling: SamplingParams,
        *,
        at_end: bool,
        forget: Callable[[], None],
    ) -> None:
        """Relay to a batch; `forget` is called, in the engine's threads, when it is over."""
        self.batch, self.key, self.is_read_at_end = batch, key, at_end
        # With stop strings, the text is looked at as it comes.
        self._choice = ChoiceRelay if not at_end or sampling.stop else WholeChoiceRelay
        self._forget, self._num_open = forget, sampling.n

    @property
    def is_over(self) -> bool:
        """True if all choices have ended."""
        return self._num_open == 0

    def sequence(self, seq: SequenceState) -> ChoiceRelay:
        """Return what takes the tokens of a choice."""
        return self._choice(self.batch, seq, self.key + seq.index, self._note_end)

    def _note_end(self) -> None:
        self._num_open -= 1
        if self.is_over:
            self._forget()


class RunningRelay:
    """A prompt that the engine answers through a relay; dropping it says that it is over."""

    def __init__(self, engine: Engine, request: RelayedRequest, forget: Callable[[], None]) -> None:
        self._engine, self.handle, self._forget = engine, request, forget

    def stop(self) -> None:
        """End all of its choices before the next step."""
        for index in range(len(self.handle.seqs)):
            self.stop_choice(index, FinishReason.STOPPED)

    def stop_choice(self, index: int, reason: FinishReason) -> None:
        """End a choice before the next step."""
        self._engine.stop_relayed(self.handle, index, reason)

    def close(self) -> None:
        """End it, and forget it."""
        self.stop()
        self._forget()
