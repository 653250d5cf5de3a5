"""HTTP/1.1 by hand: attacks send what no library would, and read when they like."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

ANSWER_S = 120.0  # a request without an answer for so long is lost
LOST = "lost"


@dataclass(slots=True)
class Tally:
    """Counts of answers to requests of one kind."""

    sent: int = 0
    statuses: Counter[str] = field(default_factory=Counter)  # by status, "cut" or "lost"

    def summary(self) -> dict[str, int]:
        """Return counts: sent, answered (2xx), refused (4xx and 503), left, cut, lost."""
        found = Counter[str]()
        for status, count in self.statuses.items():
            found[_kind_of(status)] += count
        names = ("answered", "refused", "failed", "cut", LOST)
        left = self.sent - sum(found.values())
        return {"sent": self.sent} | {name: found[name] for name in names} | {"left": left}


def _kind_of(status: str) -> str:
    if not status.isdigit():
        return status
    if status.startswith("2"):
        return "answered"
    return "refused" if status.startswith("4") or status == "503" else "failed"


@dataclass(frozen=True, slots=True)
class Target:
    """The server, and the key that a client has for it."""

    host: str
    port: int
    key: str | None = None

    def head(self, method: str, path: str, length: int | None) -> bytes:
        """Return the head of a request; `length` None: it has no body."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}"]
        if self.key is not None:
            lines.append(f"Authorization: Bearer {self.key}")
        if length is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {length}"]
        return "\r\n".join([*lines, "", ""]).encode()

    def post(self, body: dict[str, Any], path: str = "/v1/completions") -> bytes:
        """Return a whole request."""
        data = json.dumps(body).encode()
        return self.head("POST", path, len(data)) + data

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a connection, and drop it in the end without waiting for anything."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def ask(self, request: bytes, tally: Tally) -> bytes:
        """Send a request on a connection of its own, and return the body of the answer."""
        tally.sent += 1
        try:
            async with self.connect() as (reader, writer), asyncio.timeout(ANSWER_S):
                writer.write(request)
                await writer.drain()
                status, body = await read_answer(reader)
        except TimeoutError:
            tally.statuses[LOST] += 1
            return b""
        except (OSError, EOFError):
            tally.statuses["cut"] += 1
            return b""
        tally.statuses[status] += 1
        return body


async def read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    """Return the status and the headers of an answer; raises EOFError where it is cut."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return first.split()[1], {name.lower(): value.strip() for name, _, value in pairs}


async def read_answer(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Return the status and the body of an answer; raises EOFError where it is cut."""
    status, headers = await read_head(reader)
    if "content-length" in headers:
        return status, await reader.readexactly(int(headers["content-length"]))
    return status, b"".join([chunk async for chunk in read_chunks(reader)])


async def read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the chunks of a body in chunked transfer encoding."""
    while size := int(await reader.readline() or b"0", 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
