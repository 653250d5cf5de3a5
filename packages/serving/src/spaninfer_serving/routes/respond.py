"""From a request to its body, and from outputs to the two forms of an answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel

from spaninfer_serving.service import Asked, service_of
from spaninfer_serving.stream import EventStream, unless_disconnected
from spaninfer_serving.wire.parse import Body, check_headers, parse

# nginx's word for a client that went away before the answer; nobody is left to read it
CLIENT_LEFT = 499


async def read(
    request: Request, kind: type[Body], ask: Callable[[Body], Asked]
) -> tuple[Body, Asked]:
    """Return the body of a request, and what it asks of the engine."""
    check_headers(request.headers)
    data = b"".join([chunk async for chunk in request.stream()])  # .body() would keep it

    def work() -> tuple[Body, Asked]:
        body = parse(kind, data)
        return body, ask(body)

    return await service_of(request).readers.run(len(data), work)


def streamed(request: Request, chunks: AsyncGenerator[BaseModel, None]) -> EventStream:
    """Return the chunks as server-sent events; the client's leaving closes `chunks`."""
    settings = service_of(request).settings
    return EventStream(chunks, settings.keep_alive_s, request.state.prompt_param)


async def whole(request: Request, work: Callable[[], Awaitable[BaseModel]]) -> Response:
    """Return the answer as JSON; the client's leaving cancels the work."""
    answer = await unless_disconnected(request, work)
    if answer is None:
        return Response(status_code=CLIENT_LEFT)
    return Response(answer.model_dump_json(), media_type="application/json")
