"""What a request must pass before a route sees it: a key, and a body of bearable size.

Plain ASGI, because wrappers that buffer responses also hide a client's disconnect.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spaninfer_serving.problems import busy
from spaninfer_serving.settings import Settings, is_loopback
from spaninfer_serving.wire.errors import Problem

# Everything else needs the key: a new route is closed until somebody opens it here.
PUBLIC_PATHS = frozenset({"/", "/health", "/health/live", "/health/ready"})
PUBLIC_PREFIX = "/page/"  # the playground's own files; it asks for the key itself

# A client that is still sending does not read. So that it sees the refusal, what it sends is read
# and thrown away, up to this much; beyond it the connection is simply closed.
DISCARD_BYTES = 1 << 30

# Bodies on their way take at most as much memory as so many of the largest allowed.
MAX_ARRIVING = 64


class Guard:
    """ASGI middleware that answers 401 without a key, and 413 to a body over the limit."""

    def __init__(self, app: ASGIApp, settings: Settings, max_body_bytes: int) -> None:
        self._app = app
        self._settings = settings
        self._max_body_bytes = max_body_bytes
        self._arriving = 0  # bytes of bodies that are not whole yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no websockets here
            await send({"type": "websocket.close"})
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        try:
            self._check_key(scope["path"], headers)
            body = await self._read_in_time(headers, receive)
        except Problem as problem:
            await answer(problem, send)
            return
        if body is not None:  # None: the client left, so nobody waits for an answer
            await self._app(scope, _replay(body, receive), send)

    def _check_key(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        if path in PUBLIC_PATHS or path.startswith(PUBLIC_PREFIX):
            return
        scheme, _, key = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if not self._settings.accepts(key if scheme.lower() == "bearer" else None):
            raise Problem(
                401,
                "a valid key is needed: send it as 'Authorization: Bearer KEY'",
                type="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _read_in_time(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes | None:
        limit_s = self._settings.body_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._read(headers, receive)
        except TimeoutError as late:
            raise Problem(
                408,
                f"the body did not arrive within {limit_s:g} seconds",
                code="body_timeout",
                headers={"Connection": "close"},
            ) from late

    async def _read(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes | None:
        """Return the whole body, or None if the client left before it was sent."""
        limit = self._max_body_bytes
        declared = headers.get(b"content-length", b"0")
        size = int(declared) if declared.isdigit() else 0
        if size > limit and headers.get(b"expect", b"").lower() == b"100-continue":
            raise _too_large(limit)
        body = bytearray()
        refusal: Problem | None = None
        read = 0
        more = True
        try:
            while more and read <= DISCARD_BYTES:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                chunk = message.get("body", b"")
                read += len(chunk)
                if max(read, size) > limit:
                    refusal = _too_large(limit)
                elif self._arriving + len(chunk) > MAX_ARRIVING * limit:
                    refusal = busy("too many bodies arrive at once; try again later")
                if refusal is None:
                    body += chunk
                    self._arriving += len(chunk)
                else:
                    self._arriving -= len(body)
                    body.clear()
                more = message.get("more_body", False)
        finally:
            self._arriving -= len(body)
        if refusal is not None:
            raise refusal
        return bytes(body)


class LocalNames:
    """ASGI middleware that answers 403 to requests addressed to another host than this one.

    What protects a local server without a key from web pages of others is that browsers tell them
    nothing of another host's answers. A page whose own host name is made to point here (DNS
    rebinding) gets around that; but its requests carry that name.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it here."""
        host = dict(scope.get("headers", ())).get(b"host", b"localhost").decode("latin-1")
        if scope["type"] != "http" or _is_local(host):
            await self._app(scope, receive, send)
            return
        problem = Problem(
            403,
            f"this server answers to localhost, not to {host!r}; start it with "
            "--api-key SECRET, or with --no-auth, to have it answer to other names",
            type="permission_error",
            code="host_not_allowed",
        )
        await answer(problem, send)


def _is_local(host: str) -> bool:
    """Return whether a Host header, with or without a port, names this machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return is_loopback(name) or name.endswith(".localhost")


def _too_large(limit: int) -> Problem:
    return Problem(
        413, f"the body is larger than this server's limit of {limit} bytes", code="body_too_large"
    )


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receive that gives the body once, then what really happens (a disconnect)."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


async def answer(problem: Problem, send: Send) -> None:
    """Send a refusal as a whole response."""
    body = json.dumps(problem.body()).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **problem.headers,
    }
    await send(
        {
            "type": "http.response.start",
            "status": problem.status,
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})
