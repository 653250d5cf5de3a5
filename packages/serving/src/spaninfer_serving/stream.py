"""Answers while they grow: server-sent events, and work that ends when its client leaves."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from spaninfer_serving.error_mapping import STOPPING, problem_of
from spaninfer_serving.wire.errors import Problem

log = logging.getLogger(__name__)
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
T = TypeVar("T")

C = TypeVar("C")
C_contra = TypeVar("C_contra", contravariant=True)

Data: TypeAlias = BaseModel | list[bytes]
"""An event as a model, or the JSON of several events."""


class Framing(Protocol[C_contra]):
    """The wire format of a stream's events."""

    @property
    def end(self) -> bytes:
        """The last bytes of a stream."""

    def events(self, chunk: C_contra) -> bytes:
        """Return a chunk as an event, or as several that travel together."""

    def error(self, problem: Problem) -> bytes:
        """Return a refusal as an event."""


class DataEvents:
    """Events without names, and [DONE] behind them: chat and text completions."""

    end = DONE

    def events(self, chunk: Data) -> bytes:
        """Return a chunk as an event, or as several that travel together."""
        if isinstance(chunk, BaseModel):
            chunk = [chunk.model_dump_json(exclude_unset=True).encode()]
        return b"data: " + b"\n\ndata: ".join(chunk) + b"\n\n"

    def error(self, problem: Problem) -> bytes:
        """Return a refusal as an event."""
        return self.events([json.dumps(problem.body()).encode()])


class EventStream(StreamingResponse):
    """Chunks as server-sent events; a comment in silences; the client's leaving closes `chunks`.

    The framing makes events of chunks; those of one chunk travel together.
    An error in the middle becomes an event: the headers are sent, so there is no other way left.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[C, None],
        keep_alive_s: float,
        prompt_param: str,
        framing: Framing[C],
    ) -> None:
        self._framing = framing
        super().__init__(
            _events(chunks, prompt_param, self._framing),
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, or what is read of it before the client leaves."""
        request = Request(scope, receive)
        await unless_disconnected(request, partial(self.stream_response, send))

    async def stream_response(self, send: Send) -> None:
        """Send everything; cancelled when the client leaves, or the server stops."""
        line = _Line(send)
        beating = asyncio.ensure_future(line.keep_alive(self._keep_alive_s))
        try:
            await super().stream_response(line.send)
        except asyncio.CancelledError:
            await line.finish(self._framing.error(STOPPING) + self._framing.end)
            raise
        finally:
            beating.cancel()


class _Line:
    """The way to one client, and whether anything has gone along it lately."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_open = True
        self._num_sent = 0

    async def send(self, message: Message) -> None:
        self._num_sent += 1
        self._is_open = message.get("more_body", True)
        await self._send(message)

    async def finish(self, last: bytes) -> None:
        """End the response early; says nothing to a client that has left."""
        if self._is_open:
            await self.send({"type": "http.response.body", "body": last, "more_body": False})

    async def keep_alive(self, silence_s: float) -> None:
        """Send a comment after every silence, so that proxies and clients do not give up."""
        while self._is_open:
            before = self._num_sent
            await asyncio.sleep(silence_s)
            if self._is_open and self._num_sent == before:
                await self.send(
                    {"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True}
                )


async def _events(
    chunks: AsyncGenerator[C, None], prompt_param: str, framing: Framing[C]
) -> AsyncIterator[bytes]:
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                yield framing.events(chunk)
        except Exception as error:
            problem = problem_of(error, prompt_param)
            if problem.status >= 500:
                log.exception("a streamed request failed")
            yield framing.error(problem)
        yield framing.end


async def unless_disconnected(request: Request, work: Callable[[], Awaitable[T]]) -> T | None:
    """Return what `work` returns; cancel it and return None when the client goes away."""
    working = asyncio.current_task()
    assert working is not None, "requests are answered in tasks"
    has_left = False

    def cancel(_: object) -> None:
        nonlocal has_left
        has_left = True
        working.cancel()

    leaving = asyncio.ensure_future(_disconnected(request))
    leaving.add_done_callback(cancel)
    try:
        return await work()
    except asyncio.CancelledError:
        if has_left and not working.uncancel():
            return None
        raise
    finally:
        leaving.remove_done_callback(cancel)
        leaving.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
