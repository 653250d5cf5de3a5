"""The engine's outputs as whole OpenAI responses; chunks.py has those that stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import chain
from typing import TypeAlias

from pydantic import BaseModel
from spaninfer_engine import FinishReason, Output, TokenLogprob
from spaninfer_engine import Usage as EngineUsage
from spaninfer_engine.serving import each_token

from spaninfer_serving.answers.chat import ChatAnswer, message_of
from spaninfer_serving.answers.fields import (
    TokenDecoder,
    chat_logprobs,
    completion_logprobs,
    finish_reason,
    usage_of,
)
from spaninfer_serving.answers.prompt_logprobs import prompt_logprob_pieces
from spaninfer_serving.answers.text_offsets import TextOffsets, Vocabulary
from spaninfer_serving.dialects.parser import AnswerFormat
from spaninfer_serving.ids import new_hex
from spaninfer_serving.wire.chat import (
    ChatChoice,
    ChatResponse,
)
from spaninfer_serving.wire.completions import (
    CompletionChoice,
    CompletionResponse,
)
from spaninfer_serving.wire.pieces import (
    Lists,
    answer_in_pieces,
    chat_pieces,
    completion_pieces,
    in_pieces,
)

FINGERPRINT = f"spaninfer-{version('spaninfer-serving')}"

# Tokens of a whole answer that are taken apart in place: of text they take less than 0.1 ms, as a
# call with a list of numbers 7, of Python's 18 (one of two busy cores of an AMD EPYC).
PARSED_IN_LOOP = 512

# Tokens of a stream that are written before other tasks have a turn; with 20 top tokens each 3 ms.
TOKENS_PER_TURN = 128

Answer: TypeAlias = BaseModel | Iterator[str]
"""A whole answer: as a model, or with log-probabilities, its JSON piece by piece."""


@dataclass(frozen=True, slots=True)
class ResponseMeta:
    """The fields that every answer to a request repeats, and those the client asked to see."""

    id: str
    created: int
    model: str
    fingerprint: str
    include_usage: bool
    token_ids: bool
    prompt_logprobs: bool = False
    media_tokens: Mapping[str, int] = field(default_factory=dict)  # of the prompt, by their kinds

    @classmethod
    def new(
        cls,
        prefix: str,
        model: str,
        *,
        include_usage: bool,
        token_ids: bool,
        prompt_logprobs: bool = False,
    ) -> ResponseMeta:
        """Return an envelope with an id of its own, dated now."""
        name = f"{prefix}-{new_hex()}"
        now_s = int(time.time())
        return cls(name, now_s, model, FINGERPRINT, include_usage, token_ids, prompt_logprobs)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a text completion, as the answer shows it."""

    ids: Sequence[int]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSpec:
    """An answer, but for the engine's outputs: what it repeats and shows of them."""

    meta: ResponseMeta
    words: Vocabulary
    prompts: Sequence[Prompt]  # a chat has one
    choices: int  # of each prompt
    logprobs: bool
    echo: bool = False  # of a text completion: begin texts with their prompts
    hidden: Collection[int] = ()  # of a text completion: tokens that are left out of texts
    form: AnswerFormat | None = None  # of a chat: how its answers are taken apart


@dataclass(slots=True)
class Collected:
    """One choice: what has come of it."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: Sequence[TokenLogprob] = ()
    last: Output | None = None

    def take(self, output: Output) -> None:
        """Add what has come."""
        self.text.append(output.text)
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.prompt_logprobs = self.prompt_logprobs or output.prompt_logprobs
        self.last = output

    @property
    def end(self) -> Output:
        """The last output."""
        assert self.last is not None, "every choice ends with an output"
        return self.last


def checked(output: Output) -> Output:
    """Raise the error that ended a choice; return any other output."""
    if output.finish_reason is FinishReason.ERROR:
        raise output.error or RuntimeError("the engine gave no reason")
    return output


async def token_by_token(output: Output) -> AsyncIterator[Output]:
    """Yield an output token by token, as `checked`; other tasks have turns in between."""
    for number, token in enumerate(each_token(checked(output)), start=1):
        yield token
        if number % TOKENS_PER_TURN == 0:
            await asyncio.sleep(0)


def usage_at_end(output: Output) -> EngineUsage:
    """Return the usage of a choice from its last output."""
    assert output.usage is not None, "a finished output carries its usage"
    return output.usage


async def collect(
    outputs: AsyncIterator[tuple[int, Output]], choices: int
) -> tuple[list[Collected], dict[int, EngineUsage]]:
    """Return all choices when they have ended, and their usage."""
    collected = [Collected() for _ in range(choices)]
    async for index, output in outputs:
        collected[index].take(checked(output))
    usages = {i: usage_at_end(choice.end) for i, choice in enumerate(collected)}
    return collected, usages


async def chat_response(outputs: AsyncIterator[tuple[int, Output]], spec: AnswerSpec) -> Answer:
    """Return the whole answer to a chat request."""
    meta, form, (prompt,) = spec.meta, spec.form, spec.prompts
    collected, usages = await collect(outputs, spec.choices)

    def choices_of_chat() -> list[ChatChoice]:
        return [_chat_choice(index, each, meta, form) for index, each in enumerate(collected)]

    is_long = form is not None and sum(len(each.token_ids) for each in collected) > PARSED_IN_LOOP
    parts = await asyncio.to_thread(choices_of_chat) if is_long else choices_of_chat()
    response = ChatResponse(
        id=meta.id,
        created=meta.created,
        model=meta.model,
        system_fingerprint=meta.fingerprint,
        choices=parts,
        usage=usage_of([len(prompt.ids)], usages, meta.media_tokens),
        prompt_token_ids=list(prompt.ids) if meta.token_ids else None,
    )
    if not (spec.logprobs or meta.prompt_logprobs):
        return response
    response.choices = []
    said = [_chat_lists(choice, spec.words) if spec.logprobs else {} for choice in collected]
    about = _prompt_lists(spec, collected[0])
    return answer_in_pieces(response, zip(parts, said, strict=True), about)


def _chat_lists(choice: Collected, words: TokenDecoder) -> Lists:
    pieces = in_pieces(choice.logprobs)
    return {"logprobs": chat_pieces(chat_logprobs(piece, words) for piece in pieces)}


def _prompt_lists(spec: AnswerSpec, first: Collected) -> Lists:
    """Return what an answer says about a prompt, which its first choice computes."""
    if not spec.meta.prompt_logprobs:
        return {}
    return {"prompt_logprobs": prompt_logprob_pieces(first.prompt_logprobs, spec.words)}


def _chat_choice(
    index: int, choice: Collected, meta: ResponseMeta, form: AnswerFormat | None
) -> ChatChoice:
    answer = ChatAnswer(form)
    events = answer.push(replace(choice.end, text="".join(choice.text)))
    return ChatChoice(
        index=index,
        message=message_of(events),
        logprobs=None,
        finish_reason=answer.finish_reason(choice.end.finish_reason) or "",
        stop_reason=choice.end.matched,
        token_ids=choice.token_ids if meta.token_ids else None,
    )


def completion_with(meta: ResponseMeta, parts: list[CompletionChoice]) -> CompletionResponse:
    """Return a text completion, or a chunk of one, with these choices."""
    return CompletionResponse(
        id=meta.id,
        object="text_completion",
        created=meta.created,
        model=meta.model,
        choices=parts,
        system_fingerprint=meta.fingerprint,
    )


async def completion_response(
    outputs: AsyncIterator[tuple[int, Output]], spec: AnswerSpec
) -> Answer:
    """Return the whole answer to a text completion; choice = prompt * n + index."""
    meta, prompts, choices = spec.meta, spec.prompts, spec.choices
    collected, usages = await collect(outputs, choices * len(prompts))
    parts = []
    said = []
    for index, choice in enumerate(collected):
        prompt = prompts[index // choices]
        part = CompletionChoice(
            index=index,
            text=(prompt.text if spec.echo else "") + "".join(choice.text),
            finish_reason=finish_reason(choice.end.finish_reason),
            stop_reason=choice.end.matched,
        )
        if meta.token_ids:
            part.token_ids = choice.token_ids
            part.prompt_token_ids = list(prompt.ids)
        parts.append(part)
        first = collected[index - index % choices]  # computes the prompt, for the others too
        shown = echoed(prompt, first.prompt_logprobs) if spec.echo else ()
        entries = chain(shown, choice.logprobs)
        pieces = completion_pieces(_wire_parts(entries, spec, offsets_of(spec, index)))
        of_choice = {"logprobs": pieces} if spec.logprobs else {}
        said.append({**of_choice, **_prompt_lists(spec, first)})
    response = completion_with(meta, parts)
    response.usage = usage_of([len(prompt.ids) for prompt in prompts], usages)
    if not (spec.logprobs or meta.prompt_logprobs):
        return response
    response.choices = []
    return answer_in_pieces(response, zip(parts, said, strict=True), {})


def _wire_parts(
    entries: Iterable[TokenLogprob | int], spec: AnswerSpec, offsets: TextOffsets
) -> Iterator[Mapping[str, Sequence[object]]]:
    """Yield log-probabilities as text completions carry them, a piece at a time."""
    for piece in in_pieces(entries):
        yield completion_logprobs(piece, spec.words, offsets.of)


def offsets_of(spec: AnswerSpec, index: int) -> TextOffsets:
    """Return the offsets of tokens in the text of a choice, from its beginning."""
    prompt = spec.prompts[index // spec.choices]
    shown = (prompt.ids, prompt.text) if spec.echo else ((), "")
    return TextOffsets(spec.words, spec.hidden, echoed=shown)


def echoed(prompt: Prompt, entries: Iterable[TokenLogprob]) -> Iterator[TokenLogprob | int]:
    """Return an echoed prompt's entries; in front of its first token there is nothing."""
    return chain(prompt.ids[:1], entries)


async def without_answers(
    outputs: AsyncIterator[tuple[int, Output]],
) -> AsyncIterator[tuple[int, Output]]:
    """Yield outputs without the token that an engine samples though max_tokens is 0."""
    async for index, output in outputs:
        ended = output.finish_reason not in (None, FinishReason.ERROR)
        yield (
            index,
            Output(
                index=output.index,
                prompt_logprobs=output.prompt_logprobs,
                finish_reason=FinishReason.LENGTH if ended else output.finish_reason,
                error=output.error,
                seed=output.seed,
                usage=replace(output.usage, output_len=0) if output.usage else None,
            ),
        )
