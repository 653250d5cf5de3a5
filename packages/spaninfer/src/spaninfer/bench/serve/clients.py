"""Clients that cost less than the server they load: bytes are counted as they come, not parsed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from spaninfer_engine import ConfigError

from spaninfer.bench.soak.client import Target

_EVENT = b"data: {"
_LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass(slots=True)
class Seen:
    """Observations of clients over a window."""

    answers: int = 0
    events: int = 0
    gaps: list[float] = field(default_factory=list)  # seconds between two reads of an answer


class Clients:
    """Connections that send the same request again whenever it is answered."""

    def __init__(self, request: bytes, num_tokens: int) -> None:
        self.request = request
        self.ending = b'"completion_tokens":%d,' % num_tokens  # of each whole answer's usage
        self.seen = Seen()
        self.refusal: bytes | None = None

    def take(self) -> Seen:
        """Return what was seen since the last call; ConfigError where a request was refused."""
        if self.refusal is not None:
            raise ConfigError(f"the server refused a request: {self.refusal[:500]!r}")
        seen, self.seen = self.seen, Seen()
        return seen


@asynccontextmanager
async def clients(
    target: Target, body: dict[str, Any], path: str, count: int
) -> AsyncIterator[Clients]:
    """Give clients that are sending; they leave in the end, wherever their answers are."""
    found = Clients(target.post(body, path), body["max_tokens"])
    kind = _Stream if body.get("stream") else _Whole
    loop = asyncio.get_running_loop()
    transports = []
    try:
        for _ in range(count):
            transport, _ = await loop.create_connection(
                lambda: kind(found), target.host, target.port
            )
            transports.append(transport)
        yield found
    finally:
        for transport in transports:
            transport.abort()


class _Client(asyncio.Protocol):
    def __init__(self, shared: Clients) -> None:
        self._shared = shared
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        if not self._transport.is_closing():
            self._shared.refusal = self._shared.refusal or b"a connection was cut"

    def _ask(self) -> None:
        self._data = b""
        self._read_s = 0.0
        self._transport.write(self._shared.request)

    def _check(self, head: bytes) -> None:
        if b" 200 " not in head[:20]:
            self._shared.refusal = head
            self._transport.abort()


class _Whole(_Client):
    """A client of whole answers."""

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            self._check(self._data)
            if self._shared.ending not in body:
                self._shared.refusal = self._shared.refusal or self._data
            self._shared.seen.answers += 1
            self._ask()


class _Stream(_Client):
    """A client of streams."""

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        seen = self._shared.seen
        if self._read_s:  # else the head comes, whole: servers write it at once
            seen.gaps.append(now - self._read_s)
        else:
            self._check(data)
        self._read_s = now
        seen.events += (self._data[1 - len(_EVENT) :] + data).count(_EVENT)  # one may come in parts
        self._data = self._data[-len(_LAST_CHUNK) :] + data[-len(_LAST_CHUNK) :]
        if self._data.endswith(_LAST_CHUNK):
            seen.answers += 1
            self._ask()
