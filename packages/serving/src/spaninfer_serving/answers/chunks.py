"""The engine's outputs as OpenAI responses, chunk by chunk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from spaninfer_engine import Output, TokenLogprob
from spaninfer_engine import Usage as EngineUsage

from spaninfer_serving.answers.chat import ChatAnswer, delta_of
from spaninfer_serving.answers.fields import (
    TokenDecoder,
    chat_logprobs,
    completion_logprobs,
    finish_reason,
    usage_of,
)
from spaninfer_serving.answers.responses import (
    AnswerSpec,
    ResponseMeta,
    checked,
    completion_with,
    echoed,
    offsets_of,
    token_by_token,
    usage_at_end,
)
from spaninfer_serving.answers.text_offsets import TextOffsets
from spaninfer_serving.wire.chat import ChatChunk, ChatChunkChoice, Delta
from spaninfer_serving.wire.completions import CompletionChoice, CompletionResponse
from spaninfer_serving.wire.pieces import TextEvents, event_with, in_pieces


async def chat_chunks(
    outputs: AsyncIterator[tuple[int, Output]], spec: AnswerSpec
) -> AsyncGenerator[ChatChunk | list[bytes], None]:
    """Yield a chat answer as it grows: the role first, text, the reason, then the usage."""
    meta, growing = spec.meta, _GrowingChat(spec)
    for chunk in growing.roles():
        yield chunk
    async for index, news in outputs:
        rest: Output | None = news
        if growing.is_text and not spec.logprobs:
            texts, rest = _texts_and_end(checked(news))
            if said := [text for text in texts if text]:
                yield growing.events(index, said)
        if rest is None:
            continue
        async for output in token_by_token(rest):
            grown = growing.chunk(index, output)
            if grown is not None:
                yield grown
    if meta.include_usage:
        last = _chat_chunk(meta, [])
        (prompt,) = spec.prompts
        last.usage = usage_of([len(prompt.ids)], growing.usages, meta.media_tokens)
        yield last


class _GrowingChat:
    """The choices of a chat answer while their outputs come in."""

    def __init__(self, spec: AnswerSpec) -> None:
        self.is_text = spec.form is None and not spec.meta.token_ids
        self.usages: dict[int, EngineUsage] = {}
        self._spec, self._meta = spec, spec.meta
        self._events: dict[int, TextEvents] = {}
        self._answers = [ChatAnswer(spec.form) for _ in range(spec.choices)]

    def roles(self) -> Iterator[ChatChunk]:
        """Yield the first chunk of each choice; the first of all has the prompt's token ids."""
        for index in range(self._spec.choices):
            role = Delta(role="assistant", content="")
            part = ChatChunkChoice(index=index, delta=role, finish_reason=None)
            first = _chat_chunk(self._meta, [part])
            if self._meta.token_ids and not index:
                (prompt,) = self._spec.prompts
                first.prompt_token_ids = list(prompt.ids)
            yield first

    def events(self, index: int, texts: Sequence[str]) -> list[bytes]:
        """Return the events of tokens that are text alone."""
        return self._text_events(index).json(texts)

    def chunk(self, index: int, output: Output) -> ChatChunk | list[bytes] | None:
        """Return what an output adds to its choice; None where nothing is seen of it."""
        spec, meta = self._spec, self._meta
        if output.finish_reason is not None:
            self.usages[index] = usage_at_end(output)
        scores = _chat_scores(output, spec.words) if spec.logprobs else None
        if self.is_text and scores and output.text and output.finish_reason is None:
            return [self._text_events(index).json_with(output.text, scores)]
        part = _chat_part(index, output, self._answers[index], meta)
        if part is None:
            return None
        if scores is None:
            return _chat_chunk(meta, [part])
        part.logprobs = None
        return [event_with(_chat_chunk(meta, [part]), scores)]

    def _text_events(self, index: int) -> TextEvents:
        if index not in self._events:
            self._events[index] = TextEvents(partial(self._text_chunk, index))
        return self._events[index]

    def _text_chunk(self, index: int, text: str) -> ChatChunk:
        part = ChatChunkChoice(index=index, delta=Delta(content=text), finish_reason=None)
        if self._spec.logprobs:
            part.logprobs = None
        return _chat_chunk(self._meta, [part])


def _chat_chunk(meta: ResponseMeta, parts: list[ChatChunkChoice]) -> ChatChunk:
    return ChatChunk(
        id=meta.id,
        object="chat.completion.chunk",
        created=meta.created,
        model=meta.model,
        choices=parts,
        system_fingerprint=meta.fingerprint,
    )


def _chat_scores(output: Output, words: TokenDecoder) -> dict[str, Any]:
    return {"content": chat_logprobs(output.logprobs, words)}


def _chat_part(
    index: int, output: Output, answer: ChatAnswer, meta: ResponseMeta
) -> ChatChunkChoice | None:
    """Return what an output adds to its choice but log-probabilities; None where nothing is seen of
    it, these included.
    """
    delta = delta_of(answer.push(output))
    ended = answer.finish_reason(output.finish_reason)
    if not (ended or delta.model_fields_set or output.logprobs or meta.token_ids):
        return None
    part = ChatChunkChoice(index=index, delta=delta, finish_reason=ended)
    if output.matched is not None:
        part.stop_reason = output.matched
    if meta.token_ids:
        part.token_ids = list(output.token_ids)
    return part


async def completion_chunks(
    outputs: AsyncIterator[tuple[int, Output]], spec: AnswerSpec
) -> AsyncGenerator[CompletionResponse | list[bytes], None]:
    """Yield a text completion as it grows, then the usage."""
    meta, growing = spec.meta, _GrowingCompletion(spec)
    is_plain = not (spec.logprobs or meta.token_ids)
    async for index, news in outputs:
        rest: Output | None = news
        if is_plain:
            texts, rest = _texts_and_end(checked(news))
            if texts:
                yield growing.events(index, texts)
        if rest is None:
            continue
        async for output in token_by_token(rest):
            async for chunk in growing.chunks(index, output):
                yield chunk
    if meta.include_usage:
        last = completion_with(meta, [])
        last.usage = usage_of([len(prompt.ids) for prompt in spec.prompts], growing.usages)
        yield last


class _GrowingCompletion:
    """The choices of a text completion while their outputs come in; choice = prompt * n + index."""

    def __init__(self, spec: AnswerSpec) -> None:
        self._spec = spec
        self._started: set[int] = set()
        # By prompt: its first choice computes it, and speaks before the others do.
        self._of_prompts: list[Sequence[TokenLogprob]] = [()] * len(spec.prompts)
        # Made as choices begin: there may be thousands.
        self._offsets: dict[int, TextOffsets] = {}
        self._events: dict[int, TextEvents] = {}
        self.usages: dict[int, EngineUsage] = {}

    def events(self, index: int, texts: tuple[str, ...]) -> list[bytes]:
        """Return the events of tokens that are text alone."""
        if self._is_first(index) and self._spec.echo:
            texts = (self._spec.prompts[index // self._spec.choices].text + texts[0], *texts[1:])
        return self._text_events(index).json(texts)

    async def chunks(
        self, index: int, output: Output
    ) -> AsyncIterator[CompletionResponse | list[bytes]]:
        """Yield what an output adds to its choice: early chunks hold log-probabilities alone."""
        spec = self._spec
        number = index // spec.choices
        prompt, is_first = spec.prompts[number], self._is_first(index)
        is_echoed = spec.echo and is_first
        ended = finish_reason(output.finish_reason)
        if ended is not None:
            self.usages[index] = usage_at_end(output)
        self._of_prompts[number] = self._of_prompts[number] or output.prompt_logprobs
        shown = echoed(prompt, self._of_prompts[number]) if is_echoed and spec.logprobs else ()
        pieces = in_pieces(chain(shown, output.logprobs))
        last = next(pieces)
        for piece in pieces:
            scores = await asyncio.to_thread(self._scores, index, last)
            yield [self._text_events(index).json_with("", scores)]
            last = piece
        text = (prompt.text if is_echoed else "") + output.text
        if spec.logprobs and ended is None and not spec.meta.token_ids:
            yield [self._text_events(index).json_with(text, self._scores(index, last))]
            return
        part = CompletionChoice(index=index, text=text, finish_reason=ended)
        if output.matched is not None:
            part.stop_reason = output.matched
        if spec.meta.token_ids:
            part.token_ids = list(output.token_ids)
            if is_first:
                part.prompt_token_ids = list(prompt.ids)
        chunk = completion_with(spec.meta, [part])
        if not spec.logprobs:
            yield chunk
            return
        part.logprobs = None
        yield [event_with(chunk, self._scores(index, last))]

    def _scores(self, index: int, entries: Sequence[TokenLogprob | int]) -> dict[str, list[Any]]:
        """Return log-probabilities as they travel; moves the text offset of the choice."""
        if index not in self._offsets:
            self._offsets[index] = offsets_of(self._spec, index)
        return completion_logprobs(entries, self._spec.words, self._offsets[index].of)

    def _is_first(self, index: int) -> bool:
        """Return whether nothing of a choice has come before; true once."""
        is_first = index not in self._started
        self._started.add(index)
        return is_first

    def _text_events(self, index: int) -> TextEvents:
        if index not in self._events:
            self._events[index] = TextEvents(partial(self._text_chunk, index))
        return self._events[index]

    def _text_chunk(self, index: int, text: str) -> CompletionResponse:
        part = CompletionChoice(index=index, text=text, finish_reason=None)
        if self._spec.logprobs:
            part.logprobs = None
        return completion_with(self._spec.meta, [part])


def _texts_and_end(output: Output) -> tuple[tuple[str, ...], Output | None]:
    """Return the texts of tokens about which there is nothing else to say, and the rest, if any:
    the end of a choice, with its last token.
    """
    texts = output.texts or (output.text,)
    if output.finish_reason is None:
        return texts, None
    last = replace(output, token_ids=output.token_ids[-1:], text=texts[-1], texts=())
    return texts[:-1], last
