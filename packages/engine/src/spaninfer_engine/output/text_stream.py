"""Tokens to outputs: text in whole characters, cut at the first stop string."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from spaninfer_engine.request.logprobs import LogprobAt, SampledLogprobs
from spaninfer_engine.request.request import (
    FinishReason,
    Output,
    SamplingParams,
    TokenLogprob,
    Usage,
)
from spaninfer_engine.text.detokenize import Detokenizer, StopFinder
from spaninfer_engine.text.tokenizer import Tokenizer

Token: TypeAlias = tuple[int, LogprobAt | None]
"""A sampled token, and its log-probability where it was requested."""


class Answer(Protocol):
    """The sequence of a text: one of the engine's, or what another process knows of one."""

    @property
    def index(self) -> int:
        """Its number among the n choices."""
        ...

    @property
    def seed(self) -> int:
        """The seed of its samples."""
        ...

    @property
    def sampling(self) -> SamplingParams:
        """The parameters of its request."""
        ...

    def prompt_logprobs(self) -> Sequence[TokenLogprob]:
        """Return what is known of the log-probabilities of the prompt's tokens."""
        ...

    def usage(self, finished_s: float | None) -> Usage:
        """Return the counts and times so far."""
        ...


class End(Protocol):
    """The end of an answer, and the token that came with it, if one did."""

    @property
    def reason(self) -> FinishReason:
        """Why nothing more comes."""
        ...

    @property
    def usage(self) -> Usage:
        """All counts and times."""
        ...

    @property
    def token(self) -> tuple[Any, int, LogprobAt | None] | None:
        """The sequence, its last token, and the log-probability of that."""
        ...

    @property
    def matched(self) -> int | None:
        """The token that ended it."""
        ...

    @property
    def error(self) -> Exception | None:
        """The error that ended it."""
        ...


class TextStream:
    """The outputs of one sequence, one for the tokens of each push and one for its end.

    A stop string ends the stream before the loop has heard of it: what is drawn after it belongs
    to no output, and is not counted.
    """

    def __init__(self, seq: Answer, tokenizer: Tokenizer) -> None:
        sampling = seq.sampling
        self._seq, self._sampling = seq, sampling
        self._index, self._seed = seq.index, seq.seed
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special=sampling.skip_special,
            keep=sampling.keep_special,
            at_start=False,
        )
        self._finder = StopFinder(sampling.stop, include=sampling.include_stop)
        self._num_tokens = 0

    def push(self, tokens: Sequence[Token], now: float) -> Output:
        """Return the next tokens, and the text that they complete."""
        if not self._sampling.stop:
            texts = [self._detokenizer.push_one(token) for token, _ in tokens]
            return self._with_tokens(tokens, texts)
        texts = []
        while len(texts) < len(tokens) and self._finder.hit is None:
            token, number = tokens[len(texts)][0], self._num_tokens + len(texts) + 1
            texts.append(self._text_of(token, number))
        output = self._with_tokens(tokens[: len(texts)], texts)
        return output if self._finder.hit is None else self._stopped(output, now)

    def end(self, end: End, tokens: Sequence[Token] = ()) -> Output:
        """Return the last output: the token that came with the end, and all text held back.

        `tokens` are those in front of it that were not pushed, where there are no stop strings.
        """
        drawn = list(tokens)
        texts = [self._detokenizer.push_one(token) for token, _ in tokens]
        if end.token is not None:
            _, token, logprob = end.token
            # A token that stands for the end is no text, unless the caller wants to see it.
            is_hidden = end.matched is not None and not self._sampling.include_stop
            drawn.append((token, logprob))
            texts.append("" if is_hidden else self._text_of(token, self._num_tokens + len(drawn)))
        rest = "" if self._finder.hit is not None else self._rest()
        if rest and end.token is not None:
            texts[-1] += rest
        elif rest:
            texts.append(rest)
        if self._finder.hit is not None and end.error is None:
            return self._stopped(self._with_tokens(drawn, texts), end.usage.finished_s)
        return self._with_tokens(
            drawn,
            texts,
            finish_reason=end.reason,
            matched=end.matched,
            error=end.error,
            usage=end.usage,
        )

    def fail(self, error: Exception, now: float) -> Output:
        """Return an end that says what went wrong with the text."""
        return Output(
            index=self._index,
            finish_reason=FinishReason.ERROR,
            error=error,
            seed=self._seed,
            usage=self._usage(now),
        )

    def _with_tokens(
        self,
        tokens: Sequence[Token],
        texts: Sequence[str],
        **ending: Any,
    ) -> Output:
        is_first = self._num_tokens == 0 and len(tokens) > 0
        self._num_tokens += len(tokens)
        return Output(
            index=self._index,
            token_ids=tuple([token for token, _ in tokens]),
            text="".join(texts),
            logprobs=self._logprobs_of(tokens),
            prompt_logprobs=self._seq.prompt_logprobs() if is_first else (),
            seed=self._seed,
            texts=tuple(texts) if len(texts) > 1 else (),
            **ending,
        )

    def _logprobs_of(self, tokens: Sequence[Token]) -> Sequence[TokenLogprob]:
        if self._sampling.logprobs is None:
            return ()
        return SampledLogprobs(tuple([place for _, place in tokens if place is not None]))

    def _text_of(self, token: int, number: int) -> str:
        """Return the text that token number 1, 2, … of the answer completes."""
        text = self._detokenizer.push_one(token)
        if not self._sampling.stop or number < self._sampling.min_tokens:
            return text  # a stop string counts in what min_tokens and later ones bring
        return self._finder.push(text)

    def _rest(self) -> str:
        return self._finder.push(self._detokenizer.flush()) + self._finder.flush()

    def _stopped(self, output: Output, now: float | None) -> Output:
        return replace(
            output,
            finish_reason=FinishReason.STOP,
            matched=self._finder.hit,
            usage=self._usage(now),
        )

    def _usage(self, now: float | None) -> Usage:
        """Return the counts up to here: the loop may have drawn more already."""
        return replace(self._seq.usage(now), output_len=self._num_tokens)
