"""Answers while the engine's process restarts: 503 with Retry-After."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final

from spaninfer_serving.supervisor.messages import FromEngine

MAX_HEAD: Final = 1 << 16
HEAD_S: Final = 5.0  # for the head of a request to arrive
LINGER_S: Final = 2.0  # in which the rest of a request is read: closed before, its answer is lost
MAX_RETRY_S: Final = 10  # starts may take less than the first did
AT_ONCE: Final = 512  # connections; more wait in the system

_MESSAGE: Final = "the engine's process has crashed and is restarting; try again later"
_REFUSAL: Final = {"message": _MESSAGE, "type": "server_error", "param": None, "code": "restarting"}


def answer_while(
    control: socket.socket, listener: socket.socket, status: FromEngine, start_s: int
) -> None:
    """Answer every connection until the engine's process says that it does so itself, or exits.

    `start_s` is how long a start takes: refusals say how much of it is left.
    """
    asyncio.run(_Answers(status, monotonic() + start_s).run(control, listener))


class _Answers:
    """Requests and their refusals."""

    def __init__(self, status: FromEngine, ready_s: float) -> None:
        self._status, self._ready_s = status, ready_s
        self._places = asyncio.Semaphore(AT_ONCE)
        self._answering: set[asyncio.Task[None] | None] = set()

    async def run(self, control: socket.socket, listener: socket.socket) -> None:
        control.setblocking(False)
        server = await asyncio.start_server(
            self._answer, sock=listener.dup(), ssl=self._tls(), limit=MAX_HEAD
        )
        # One line comes, or the end: either way there is no more to do here.
        with suppress(ConnectionError):  # a process that has not read its message
            await asyncio.get_running_loop().sock_recv(control, 1)
        server.close()
        if left := [task for task in self._answering if task is not None]:
            await asyncio.wait(left, timeout=LINGER_S)

    def _tls(self) -> ssl.SSLContext | None:
        if self._status.ssl_certfile is None:
            return None
        from spaninfer_serving.tls import tls_context

        key = self._status.ssl_keyfile
        return tls_context(Path(self._status.ssl_certfile), None if key is None else Path(key))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._answering.add(task)
        try:
            async with self._places:
                with suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
                    await self._refuse(reader, writer)
        finally:
            self._answering.discard(task)
            writer.close()

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
        writer.write(self._response(head))
        await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        async with asyncio.timeout(LINGER_S):
            while await reader.read(MAX_HEAD):
                pass

    def _response(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        said: dict[str, object]
        if path == b"/health/live":  # a restart of everything would not help
            status, said = "200 OK", {"status": "the engine is restarting"}
        elif path in (b"/health/ready", b"/health"):
            status, said = "503 Service Unavailable", {"status": "the engine is restarting"}
        else:
            status, said = "503 Service Unavailable", {"error": _REFUSAL}
        body = json.dumps(said).encode()
        left_s = min(max(1, round(self._ready_s - monotonic())), MAX_RETRY_S)
        lines = (
            f"HTTP/1.1 {status}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            f"Retry-After: {left_s}",
            "Connection: close",
        )
        return "\r\n".join([*lines, "", ""]).encode() + (b"" if method == b"HEAD" else body)
