"""The engine's outputs as OpenAI's answers: whole, or chunk by chunk."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from spaninfer_engine import OutputStream
from spaninfer_engine.request import FinishReason, Output, TokenLogprob
from spaninfer_engine.request import Usage as EngineUsage

from spaninfer_serving.translate import (
    Words,
    chat_logprobs,
    completion_logprobs,
    finish_reason,
    usage_of,
)
from spaninfer_serving.wire.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatResponse,
    Delta,
)
from spaninfer_serving.wire.completions import CompletionChoice, CompletionResponse

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every answer to one request repeats, and what the client asked to see."""

    id: str
    created: int
    model: str
    fingerprint: str
    include_usage: bool
    token_ids: bool

    @classmethod
    def new(
        cls, prefix: str, model: str, fingerprint: str, *, include_usage: bool, token_ids: bool
    ) -> Envelope:
        """Return an envelope with an id of its own, dated now."""
        name = f"{prefix}-{uuid.uuid4().hex}"
        return cls(name, int(time.time()), model, fingerprint, include_usage, token_ids)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a text completion, as the answer shows it."""

    ids: tuple[int, ...]
    text: str


@dataclass(slots=True)
class _Choice:
    """One choice while its outputs come in."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    last: Output | None = None

    def take(self, output: Output) -> None:
        self.text.append(output.text)
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.prompt_logprobs = self.prompt_logprobs or output.prompt_logprobs
        self.last = output


def _checked(output: Output) -> Output:
    """Raise the error that ended a choice; return any other output."""
    if output.finish_reason is FinishReason.ERROR:
        raise output.error or RuntimeError("the engine gave no reason")
    return output


def _usage(output: Output) -> EngineUsage:
    assert output.usage is not None, "a finished output carries its usage"
    return output.usage


async def _collect(
    outputs: AsyncIterator[tuple[int, Output]], choices: int
) -> tuple[list[_Choice], dict[int, EngineUsage]]:
    collected = [_Choice() for _ in range(choices)]
    async for index, output in outputs:
        collected[index].take(_checked(output))
    usages = {i: _usage(choice.last) for i, choice in enumerate(collected) if choice.last}
    return collected, usages


async def chat_response(
    outputs: AsyncIterator[tuple[int, Output]],
    envelope: Envelope,
    words: Words,
    *,
    choices: int,
    prompt_len: int,
    logprobs: bool,
) -> ChatResponse:
    """Return the whole answer to a chat request."""
    collected, usages = await _collect(outputs, choices)

    def made() -> ChatResponse:
        return ChatResponse(
            id=envelope.id,
            created=envelope.created,
            model=envelope.model,
            system_fingerprint=envelope.fingerprint,
            choices=[
                ChatChoice(
                    index=index,
                    message=AssistantMessage(content="".join(choice.text)),
                    logprobs=chat_logprobs(choice.logprobs, words) if logprobs else None,
                    finish_reason=finish_reason(choice.last.finish_reason) or "",
                    stop_reason=choice.last.matched,
                    token_ids=choice.token_ids if envelope.token_ids else None,
                )
                for index, choice in enumerate(collected)
                if choice.last is not None
            ],
            usage=usage_of([prompt_len], usages),
        )

    return await _out_of_the_way(made) if logprobs else made()


async def _out_of_the_way(made: Callable[[], T]) -> T:
    """Return what is made in a thread: a thousand tokens with twenty likeliest each take 0.2 s."""
    return await asyncio.to_thread(made)


async def chat_chunks(
    outputs: AsyncIterator[tuple[int, Output]],
    envelope: Envelope,
    words: Words,
    *,
    choices: int,
    prompt_len: int,
    logprobs: bool,
) -> AsyncGenerator[ChatChunk, None]:
    """Yield a chat answer as it grows: the role first, text, the reason, then the usage."""

    def chunk(parts: list[ChatChunkChoice]) -> ChatChunk:
        return ChatChunk(
            id=envelope.id,
            object="chat.completion.chunk",
            created=envelope.created,
            model=envelope.model,
            choices=parts,
            system_fingerprint=envelope.fingerprint,
        )

    for index in range(choices):
        role = Delta(role="assistant", content="")
        yield chunk([ChatChunkChoice(index=index, delta=role, finish_reason=None)])
    usages: dict[int, EngineUsage] = {}
    async for index, output in outputs:
        ended = finish_reason(_checked(output).finish_reason)
        if ended is not None:
            usages[index] = _usage(output)
        if not (ended or output.text or output.logprobs or envelope.token_ids):
            continue
        part = ChatChunkChoice(
            index=index,
            delta=Delta(content=output.text) if output.text else Delta(),
            finish_reason=ended,
        )
        if logprobs:
            part.logprobs = chat_logprobs(output.logprobs, words)
        if output.matched is not None:
            part.stop_reason = output.matched
        if envelope.token_ids:
            part.token_ids = list(output.token_ids)
        yield chunk([part])
    if envelope.include_usage:
        last = chunk([])
        last.usage = usage_of([prompt_len], usages)
        yield last


def _completion(envelope: Envelope, parts: list[CompletionChoice]) -> CompletionResponse:
    return CompletionResponse(
        id=envelope.id,
        object="text_completion",
        created=envelope.created,
        model=envelope.model,
        choices=parts,
        system_fingerprint=envelope.fingerprint,
    )


async def completion_response(
    outputs: AsyncIterator[tuple[int, Output]],
    envelope: Envelope,
    words: Words,
    *,
    prompts: Sequence[Prompt],
    choices: int,
    echo: bool,
    logprobs: bool,
) -> CompletionResponse:
    """Return the whole answer to a text completion; choice = prompt * n + index."""
    collected, usages = await _collect(outputs, choices * len(prompts))

    def made() -> list[CompletionChoice]:
        return _completion_choices(
            collected, envelope, words, prompts=prompts, echo=echo, logprobs=logprobs
        )

    response = _completion(envelope, await _out_of_the_way(made) if logprobs else made())
    response.usage = usage_of([len(prompt.ids) for prompt in prompts], usages)
    return response


def _completion_choices(
    collected: Sequence[_Choice],
    envelope: Envelope,
    words: Words,
    *,
    prompts: Sequence[Prompt],
    echo: bool,
    logprobs: bool,
) -> list[CompletionChoice]:
    choices = len(collected) // len(prompts)
    parts = []
    for index, choice in enumerate(collected):
        assert choice.last is not None, "every choice ends with an output"
        prompt = prompts[index // choices]
        part = CompletionChoice(
            index=index,
            text=(prompt.text if echo else "") + "".join(choice.text),
            finish_reason=finish_reason(choice.last.finish_reason),
            stop_reason=choice.last.matched,
        )
        if logprobs:
            first = collected[index - index % choices]  # computes the prompt, for the others too
            shown = _echoed(prompt, first.prompt_logprobs) if echo else []
            part.logprobs, _ = completion_logprobs([*shown, *choice.logprobs], words, 0)
        if envelope.token_ids:
            part.token_ids = choice.token_ids
            part.prompt_token_ids = list(prompt.ids)
        parts.append(part)
    return parts


async def completion_chunks(
    outputs: AsyncIterator[tuple[int, Output]],
    envelope: Envelope,
    words: Words,
    *,
    prompts: Sequence[Prompt],
    choices: int,
    echo: bool,
    logprobs: bool,
) -> AsyncGenerator[CompletionResponse, None]:
    """Yield a text completion as it grows, then the usage."""
    usages: dict[int, EngineUsage] = {}
    started: set[int] = set()
    # By prompt: its first choice computes it, and speaks before the others do.
    of_prompts: list[tuple[TokenLogprob, ...]] = [()] * len(prompts)
    offsets = [0] * (choices * len(prompts))
    async for index, output in outputs:
        ended = finish_reason(_checked(output).finish_reason)
        if ended is not None:
            usages[index] = _usage(output)
        number = index // choices
        prompt = prompts[number]
        of_prompts[number] = of_prompts[number] or output.prompt_logprobs
        first = echo and index not in started
        started.add(index)
        part = CompletionChoice(
            index=index,
            text=(prompt.text if first else "") + output.text,
            finish_reason=ended,
        )
        if logprobs:
            shown = _echoed(prompt, of_prompts[number]) if first else []
            part.logprobs, offsets[index] = completion_logprobs(
                [*shown, *output.logprobs], words, offsets[index]
            )
        if output.matched is not None:
            part.stop_reason = output.matched
        if envelope.token_ids:
            part.token_ids = list(output.token_ids)
        yield _completion(envelope, [part])
    if envelope.include_usage:
        last = _completion(envelope, [])
        last.usage = usage_of([len(prompt.ids) for prompt in prompts], usages)
        yield last


def _echoed(prompt: Prompt, entries: Sequence[TokenLogprob]) -> list[TokenLogprob | int]:
    """Return an echoed prompt's entries; in front of its first token there is nothing."""
    return [*prompt.ids[:1], *entries]


async def without_answers(
    outputs: AsyncIterator[tuple[int, Output]],
) -> AsyncIterator[tuple[int, Output]]:
    """Yield outputs without the token that an engine draws where none was asked for."""
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


def merged(streams: Sequence[OutputStream], choices: int) -> AsyncIterator[tuple[int, Output]]:
    """Return (prompt * n + index, output) of several requests as they come."""
    return _outputs_of(streams[0]) if len(streams) == 1 else _outputs_of_all(streams, choices)


async def _outputs_of(stream: OutputStream) -> AsyncIterator[tuple[int, Output]]:
    """Yield the outputs of one request, with neither a task nor a queue in between."""
    try:
        async for output in stream:
            yield output.index, output
    finally:
        stream.close()


async def _outputs_of_all(
    streams: Sequence[OutputStream], choices: int
) -> AsyncIterator[tuple[int, Output]]:
    outputs: asyncio.Queue[tuple[int, Output] | Exception | None] = asyncio.Queue()

    async def drain(number: int, stream: OutputStream) -> None:
        try:
            async for output in stream:
                outputs.put_nowait((number * choices + output.index, output))
        except Exception as error:
            outputs.put_nowait(error)
        outputs.put_nowait(None)

    tasks = [asyncio.ensure_future(drain(i, stream)) for i, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            match await outputs.get():
                case None:
                    running -= 1
                case Exception() as error:
                    raise error
                case found:
                    yield found
    finally:
        for task, stream in zip(tasks, streams, strict=True):
            task.cancel()
            stream.close()
