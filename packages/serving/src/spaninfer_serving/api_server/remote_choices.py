"""Choices that another process computes: their tokens become text here, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat

from spaninfer_engine import (
    FinishReason,
    RequestHandle,
    ResultQueue,
    SamplingParams,
    TokenLogprob,
    Usage,
)
from spaninfer_engine.serving import (
    LogprobAt,
    PromptMedia,
    Request,
    TextStream,
    Token,
    TokenIds,
    Tokenizer,
    output_of,
)

from spaninfer_serving.api_server import messages
from spaninfer_serving.api_server.records import error_of, typed_entries, typed_logprobs
from spaninfer_serving.engine.control import StartRequest


@dataclass(eq=False, slots=True)
class RemoteChoice:
    """A choice that another process computes, as far as it is known here."""

    request: Request
    index: int
    queue: ResultQueue
    seed: int = 0
    cached_len: int = 0
    arrived_s: float = 0.0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    num_tokens: int = 0
    about_prompt: Sequence[TokenLogprob] = ()

    @property
    def sampling(self) -> SamplingParams:
        """The parameters of its request."""
        return self.request.sampling

    def prompt_logprobs(self) -> Sequence[TokenLogprob]:
        """Return the log-probabilities of the prompt's tokens."""
        return self.about_prompt

    def usage(self, finished_s: float | None) -> Usage:
        """Return the counts and times so far."""
        return Usage(
            prompt_len=len(self.request.prompt_ids),
            output_len=self.num_tokens,
            cached_len=self.cached_len,
            arrived_s=self.arrived_s,
            scheduled_s=self.scheduled_s,
            first_token_s=self.first_token_s,
            finished_s=finished_s,
        )


@dataclass(frozen=True, slots=True)
class RemoteEnd:
    """The end of a choice."""

    reason: FinishReason
    usage: Usage
    token: tuple[None, int, LogprobAt | None] | None = None
    matched: int | None = None
    error: Exception | None = None


class RemoteChoices:
    """The choices that have not ended, by their numbers; `stop` ends some in the engine."""

    def __init__(
        self, tokenizer: Tokenizer, stop: Callable[[list[int], FinishReason], None]
    ) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._next_number = 0
        self._open: dict[int, RemoteChoice] = {}
        # Of those that have begun. Not in the choices, which they hold: such circles, 23 objects
        # for each request, are the garbage collector's, for whom all requests wait.
        self._streams: dict[int, TextStream] = {}

    def open(self, ids: TokenIds, media: PromptMedia | None, asked: StartRequest) -> RequestHandle:
        """Return a new prompt, whose choices are open from now on."""
        request = Request(
            id=self._next_number,
            prompt_ids=ids,
            sampling=asked.sampling,
            placement=asked.placement,
            seed=0,
            arrived_s=0.0,
            end_ids=frozenset(),
            media=media,
        )
        num = asked.sampling.n
        self._next_number += num
        queue = ResultQueue(num, _nothing)
        choices = [RemoteChoice(request, index, queue) for index in range(num)]
        self._open |= {request.id + choice.index: choice for choice in choices}
        return RequestHandle(request, ids, choices, queue)  # type: ignore[arg-type]

    def open_of(self, handle: RequestHandle) -> list[int]:
        """Return the numbers of a prompt's choices that have not ended."""
        return [number for number in handle.seq_ids if number in self._open]

    def forget(self, handle: RequestHandle) -> None:
        """Drop the choices of a prompt that was never begun."""
        for number in handle.seq_ids:
            self._open.pop(number, None)

    def refuse(self, key: int, error: Exception) -> None:
        """End all choices of a prompt; its client may have left."""
        if (first := self._open.get(key)) is not None:
            for number in range(key, key + first.sampling.n):
                self._fail(number, error)

    def _fail(self, number: int, error: Exception) -> None:
        choice = self._open.pop(number, None)
        if choice is not None:
            stream = self._streams.pop(number, None) or TextStream(choice, self._tokenizer)
            choice.queue.put(stream.fail(error, 0.0))

    def fail_all(self, error: Callable[[], Exception]) -> None:
        """End all choices, each with an error of its own."""
        for number in list(self._open):
            self._fail(number, error())

    def take(self, news: messages.Tokens) -> None:
        """Put what is new into the queues."""
        for begun in news.begun:
            if (choice := self._open.get(begun.number)) is not None:
                self._begin(choice, begun)
        at, numbers, entries = 0, news.numbers, typed_entries(news.entries)
        entry_at = dict(zip(news.with_entries, entries, strict=False)).get
        while at < len(numbers):
            stop = at + 1
            while stop < len(numbers) and numbers[stop] == numbers[at]:
                stop += 1
            if (choice := self._open.get(numbers[at])) is not None:
                pairs = [(news.tokens[i], entry_at(i)) for i in range(at, stop)]
                self._push(numbers[at], choice, pairs)
            at = stop
        at_ends = entries[len(news.with_entries) :]
        for ending in news.endings:
            if (choice := self._open.pop(ending.number, None)) is not None:
                self._finish(choice, ending, at_ends)

    def _begin(self, choice: RemoteChoice, begun: messages.Begun) -> None:
        choice.seed, choice.cached_len = begun.seed, begun.cached_len
        choice.arrived_s, choice.scheduled_s = begun.arrived_s, begun.scheduled_s
        choice.first_token_s = begun.first_token_s
        choice.about_prompt = typed_logprobs(begun.prompt_logprobs)
        self._streams[begun.number] = TextStream(choice, self._tokenizer)

    def _push(self, number: int, choice: RemoteChoice, pairs: Sequence[Token]) -> None:
        choice.num_tokens += len(pairs)
        output = output_of(number, self._streams[number], pairs, None)
        if output.finish_reason is not None:  # a stop string, or text that cannot be made
            del self._open[number], self._streams[number]
            self._stop([number], output.finish_reason)
        choice.queue.put(output)

    def _finish(
        self, choice: RemoteChoice, ending: messages.Ending, entries: Sequence[LogprobAt]
    ) -> None:
        """End a choice; `entries` are the log-probabilities of all ends' tokens."""
        stream, first = self._streams.pop(ending.number), ending.first_entry
        own = repeat(None) if first is None else entries[first : first + len(ending.tokens)]
        tokens: list[Token] = list(zip(ending.tokens, own, strict=False))
        last = tokens.pop() if ending.has_last else None
        choice.num_tokens += len(ending.tokens)
        usage = choice.usage(ending.finished_s)
        end = RemoteEnd(
            FinishReason(ending.reason),
            usage,
            None if last is None else (None, *last),
            ending.matched,
            None if ending.fault is None else error_of(ending.fault),
        )
        if tokens and choice.sampling.stop:
            choice.queue.put(output_of(choice.index, stream, tokens, None))
            tokens = []
        choice.queue.put(output_of(choice.index, stream, tokens, end))


def _nothing() -> None:
    """Nobody keeps a table of requests here."""
