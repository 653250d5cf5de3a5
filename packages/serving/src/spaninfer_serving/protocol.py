"""HTTP/1.1 by uvicorn, with a limit to how long a connection may keep silent."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 20.0  # for the head of a request; nginx allows 60, gunicorn 30


class PatientProtocol(H11Protocol):
    """A connection that is closed when the head of a request does not come in time.

    uvicorn limits the silence between requests only: a client that sends one byte a minute, or
    nothing at all, would hold its connection for ever. (Slow bodies are the guard's business.)
    """

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Take in bytes, and see whether they brought the head to an end."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait_for_head()
        else:
            self._forget_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget about time."""
        self._forget_timer()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.close)

    def _forget_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
