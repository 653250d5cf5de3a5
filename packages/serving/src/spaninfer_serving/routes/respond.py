"""The path from a request to its body, and from outputs to both forms of an answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ValidationError
from spaninfer_engine import Output, Placement
from spaninfer_engine.serving import Task

from spaninfer_serving.admission.fair_queue import Client
from spaninfer_serving.answers.responses import Answer
from spaninfer_serving.http.replay import Replay
from spaninfer_serving.http.stream import EventStream, Framing, unless_disconnected
from spaninfer_serving.jobs.service import GenerationJob, Service, service_of
from spaninfer_serving.jobs.texts import TextJob
from spaninfer_serving.jobs.translated import TranslatedChat
from spaninfer_serving.observability.access_log import CLIENT_CLOSED_REQUEST
from spaninfer_serving.requests.media_inputs import ReadMedia
from spaninfer_serving.requests.parameters import placement_of
from spaninfer_serving.requests.parse_pool import Check
from spaninfer_serving.settings import Caller
from spaninfer_serving.wire.chat import SeenConversation
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.parse import check_headers, parse, problem_of_findings
from spaninfer_serving.wire.sampling import PlacedFields
from spaninfer_serving.wire.texts import TextFields

Body = TypeVar("Body", bound=BaseModel)
Fields = TypeVar("Fields", bound=PlacedFields)
Texts = TypeVar("Texts", bound=TextFields)
Chunk = TypeVar("Chunk")
T = TypeVar("T")
Recall = Callable[[], Awaitable[tuple[int, Callable[[], TranslatedChat]]]]
"""Waits for what a chat goes on from; returns its bytes, and what makes the chat."""

# A body up to this size is parsed in place, in about a millisecond. The way to a thread and back,
# and noticing that a client leaves meanwhile, cost 0.4 to 0.8 ms of CPU time, of 5 to 5.8 that a
# request of 1.2 KB takes in all (one of two busy cores of an AMD EPYC).
IN_PLACE_BYTES = 1 << 11


async def read(
    request: Request, kind: type[Fields], ask: Callable[[Fields, Placement, Check], T]
) -> tuple[Fields, T]:
    """Return the body of a request, and what it asks of the engine; raises as `handled` does."""
    service = service_of(request)
    service.demand("generate")
    caller = caller_of(request)
    tenant = service.settings.tenant_of(caller.key)
    may_prioritise = service.settings.may_prioritise(caller.key)

    def work(body: Fields, check: Check) -> tuple[Fields, T]:
        account = caller.client.account
        placement = placement_of(body, account, tenant, may_prioritise=may_prioritise)
        check()
        return body, ask(body, placement, check)

    return await handled(request, kind, work)


@dataclass(frozen=True, slots=True)
class AskedChat:
    """A chat that a request asks for, its place among others, and its media once they are read."""

    translated: TranslatedChat
    placement: Placement
    media: ReadMedia = field(default_factory=dict)


async def read_chat(
    request: Request,
    kind: type[Fields],
    translate: Callable[[Fields, Placement], TranslatedChat],
    work: Callable[[Service, AskedChat, Check], T],
    recall: Callable[[Fields, Placement], Recall | None] | None = None,
) -> tuple[Fields, AskedChat, T]:
    """Return the body of a request, the chat that it asks for, and what `work` makes of that.

    Where it goes on from what `recall` finds, that comes first. Where there are media they are read
    then, off the event loop; what is made of them is made in the threads that parse, in the lane of
    their size in memory. Raises as `read` does.
    """
    service = service_of(request)

    def asked_for(
        make: Callable[[], TranslatedChat], placement: Placement, check: Check
    ) -> tuple[AskedChat, T | None]:
        try:
            asked = AskedChat(make(), placement)
        except ValidationError as invalid:  # of what is made of a valid body: too many messages
            raise problem_of_findings(invalid.errors(include_url=False)) from None
        if asked.translated.chat.media():
            return asked, None
        with asked.translated.naming():
            return asked, work(service, asked, check)

    def begin(
        body: Fields, placement: Placement, check: Check
    ) -> tuple[Placement, Recall | None, tuple[AskedChat, T | None] | None]:
        found = None if recall is None else recall(body, placement)
        if found is not None:
            return placement, found, None
        return placement, None, asked_for(lambda: translate(body, placement), placement, check)

    body, (placement, recalled, begun) = await read(request, kind, begin)
    if recalled is not None:
        size, make = await recalled()
        begun = await _worked(request, size, lambda check: asked_for(make, placement, check))
    assert begun is not None, "it was begun, or goes on"
    asked, made = begun
    if made is not None:
        return body, asked, made

    def see(media: ReadMedia, check: Check) -> tuple[AskedChat, T]:
        seen = replace(asked, media=media)
        return seen, work(service, seen, check)

    with asked.translated.naming():
        chat, tenant = asked.translated.chat, asked.placement.tenant
        return body, *await with_media(request, chat, tenant, see)


async def with_media(
    request: Request,
    chat: SeenConversation,
    tenant: str,
    work: Callable[[ReadMedia, Check], T],
) -> T:
    """Return what `work` makes of a conversation's media, once they are read off the event loop.

    It works in the threads that parse, in the lane of the media's size in memory, but for little
    text about media that were read before: that is done in place. Raises as
    `handled` does, and what `MediaInputs.read` raises.
    """
    service = service_of(request)
    media = await unless_disconnected(request, lambda: service.media_inputs.read(chat, tenant))
    if media is None:
        raise _left()
    size = sum(each.num_bytes for each in media.values()) + chat.num_chars
    return await _worked(request, size, lambda check: work(media, check))


async def _worked(request: Request, size: int, work: Callable[[Check], T]) -> T:
    """Return what `work` makes of that many bytes: in place of few, else in the threads that parse.

    The client's leaving drops the work, and raises Problem.
    """
    if size <= IN_PLACE_BYTES:
        return work(lambda: None)
    pool, client = service_of(request).parse_pool, caller_of(request).client
    made = await unless_disconnected(request, lambda: pool.run(size, client, work))
    if made is None:
        raise _left()
    return made


def ask(service: Service, asked: AskedChat, check: Check) -> GenerationJob:
    """Return what a chat asks of the engine; raises as `Service.ask_chat` does."""
    translated = asked.translated
    job = service.ask_chat(translated.chat, asked.placement, asked.media, check)
    return translated.renamed(job)


def count_prompt(service: Service, asked: AskedChat, check: Check) -> int:
    """Return how many tokens the prompt of a chat has; raises as `Service.chat_ids` does."""
    chat = asked.translated.chat
    service.named(chat.model)
    ids, _ = service.chat_ids(chat, asked.media, check)
    return len(ids)


async def started(
    request: Request, asked: GenerationJob, *, is_streamed: bool
) -> AsyncIterator[tuple[int, Output]]:
    """Wait for the gate, start a job, and return its outputs; raises as `Service.start` does.

    The client's leaving ends the wait, and raises Problem.
    """
    service = service_of(request)
    while service.client.gate.is_shut:  # rarely: watching a client takes a task
        if await unless_disconnected(request, service.client.gate.opened) is None:
            raise _left()
    return await service.start(asked, request.state.tally, at_end=not is_streamed)


async def read_texts(
    request: Request,
    kind: type[Texts],
    ask: Callable[[Texts, Client, Check], TextJob],
    task: Task,
) -> tuple[Texts, TextJob]:
    """Return the body of a request about texts, as `read` does."""
    service_of(request).demand(task)
    client = caller_of(request).client
    return await handled(request, kind, lambda body, check: (body, ask(body, client, check)))


async def handled(request: Request, kind: type[Body], work: Callable[[Body, Check], T]) -> T:
    """Return what `work` makes of the body of a request, in the threads that parse.

    The client's leaving drops the work, and raises Problem.
    """
    check_headers(request.headers)
    data = _body_of(request)

    def parse_and_work(check: Check) -> T:
        body = parse(kind, data)
        check()
        return work(body, check)

    return await _worked(request, len(data), parse_and_work)


def _body_of(request: Request) -> bytes:
    """Return the body of a request, and forget it: `Request.body` would keep it."""
    received = request.receive
    assert isinstance(received, Replay), "the guard has read it"
    return received.take()


def _left() -> Problem:
    return Problem(CLIENT_CLOSED_REQUEST, "the client has left", code="client_left")


def caller_of(request: Request) -> Caller:
    """Return who sends a request, as the guard found."""
    caller: Caller = request.state.caller
    return caller


def streamed(
    request: Request, chunks: AsyncGenerator[Chunk, None], framing: Framing[Chunk]
) -> EventStream:
    """Return the chunks as server-sent events; the client's leaving closes `chunks`."""
    settings = service_of(request).settings
    return EventStream(chunks, settings.keep_alive_s, request.state.prompt_param, framing)


async def whole(request: Request, work: Callable[[], Awaitable[Answer]]) -> Response:
    """Return the answer as JSON; the client's leaving cancels the work."""
    answer = await unless_disconnected(request, work)
    if answer is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    if isinstance(answer, BaseModel):
        return Response(answer.model_dump_json(), media_type="application/json")
    return StreamingResponse(answer, media_type="application/json")  # each piece in a thread
