"""Answers while they grow: server-sent events, and work that ends when its client leaves."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from spaninfer_serving.error_mapping import STOPPING, problem_of, unexplained
from spaninfer_serving.http.plain_http import PlainCycle
from spaninfer_serving.http.replay import plain_cycle
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
        super().__init__((), headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._chunks, self._framing = chunks, framing
        self._keep_alive_s, self._prompt_param = keep_alive_s, prompt_param

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, or what is read of it before the client leaves."""
        line = _Line(send, plain_cycle(receive))
        await unless_disconnected(Request(scope, receive), partial(self._send, line))

    async def _send(self, line: _Line) -> None:
        """Send everything; cancelled when the client leaves, or the server stops."""
        beating = asyncio.ensure_future(line.keep_alive(self._keep_alive_s))
        try:
            async with aclosing(self._chunks):
                await line.begin(self.status_code, self.raw_headers)
                await self._send_chunks(line)
                await line.finish(self._framing.end)
        except asyncio.CancelledError:
            await line.finish(self._framing.error(STOPPING) + self._framing.end)
            raise
        finally:
            beating.cancel()

    async def _send_chunks(self, line: _Line) -> None:
        """Send what there is, and the error that ends it as an event."""
        while True:
            try:
                chunk = await self._chunks.__anext__()
            except StopAsyncIteration:
                return
            except Exception as error:
                problem = problem_of(error, self._prompt_param)
                if problem.status >= 500:
                    log.error("a streamed request failed: %s", error, exc_info=unexplained(error))
                await line.write(self._framing.error(problem))
                return
            await line.write(self._framing.events(chunk))


class _Line:
    """The way to one client, and whether anything has gone along it lately."""

    def __init__(self, send: Send, cycle: PlainCycle | None) -> None:
        self._send, self._cycle = send, cycle
        self._is_open = True
        self._num_sent = 0

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Send a piece; in place where the connection can, since it is one for each token."""
        self._num_sent += 1
        if self._cycle is None or not self._cycle.write_nowait(data):
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, last: bytes) -> None:
        """End the response; says nothing to a client that has left."""
        if self._is_open:
            self._is_open = False
            await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def keep_alive(self, silence_s: float) -> None:
        """Send a comment after every silence, so that proxies and clients do not give up."""
        while self._is_open:
            before = self._num_sent
            await asyncio.sleep(silence_s)
            if self._is_open and self._num_sent == before:
                await self.write(KEEP_ALIVE)


async def unless_disconnected(request: Request, work: Callable[[], Awaitable[T]]) -> T | None:
    """Return what `work` returns; cancel it and return None when the client goes away."""
    working = asyncio.current_task()
    assert working is not None, "requests are answered in tasks"
    is_over = has_left = False

    def leave() -> None:
        nonlocal has_left
        if not is_over:
            has_left = True
            working.cancel()

    stop_watching = _watch(request, leave)
    try:
        return await work()
    except asyncio.CancelledError:
        if has_left and not working.uncancel():
            return None
        raise
    finally:
        is_over = True
        stop_watching()


def _watch(request: Request, leave: Callable[[], None]) -> Callable[[], object]:
    """Call `leave` when the client goes away; return what ends that. Of a plain request, no task
    waits for it.
    """
    cycle = plain_cycle(request.receive)
    if cycle is not None and not cycle.disconnected:
        return cycle.watch(leave)
    leaving = asyncio.ensure_future(_disconnected(request))
    leaving.add_done_callback(lambda _: leave())
    return leaving.cancel


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
