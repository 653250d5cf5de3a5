"""The receive of a request whose body has been read, and what answers the request."""

from __future__ import annotations

from starlette.types import Message, Receive

from spaninfer_serving.http.plain_http import PlainCycle


class Replay:
    """A receive that gives the body once, then what really happens (a disconnect)."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive
        self.cycle = plain_cycle(receive)

    async def __call__(self) -> Message:
        """Return the next message."""
        if self._body is None:
            return await self._receive()
        return {"type": "http.request", "body": self.take(), "more_body": False}

    def take(self) -> bytes:
        """Return the body; a second call gets nothing of it."""
        body, self._body = self._body, None
        assert body is not None, "a body is read once"
        return body


def plain_cycle(receive: Receive) -> PlainCycle | None:
    """Return what answers the request of an ASGI receive, where it is a plain one.

    Not by way of the scope: the cycle holds that, and a scope that held the cycle would stay in
    memory, with all that middleware left there, until the garbage collector came.
    """
    if isinstance(receive, Replay):
        return receive.cycle
    owner = getattr(receive, "__self__", None)
    return owner if isinstance(owner, PlainCycle) else None
