"""Admission of HTTP requests: keys, header limits, and bodies of bounded size.

Plain ASGI, because wrappers that buffer responses also hide a client's disconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from spaninfer_serving.admission.fair_queue import Client
from spaninfer_serving.admission.gate import AdmissionGate
from spaninfer_serving.error_mapping import busy, send_problem
from spaninfer_serving.http.plain_http import PlainCycle
from spaninfer_serving.http.replay import Replay, plain_cycle
from spaninfer_serving.settings import Settings
from spaninfer_serving.wire.errors import Problem

# Everything else needs the key: a new route is closed until somebody opens it here.
PUBLIC_PATHS = frozenset({"/", "/health", "/health/live", "/health/ready"})
PUBLIC_PREFIX = "/page/"  # the playground's own files; it asks for the key itself

# Bodies on their way: so much of each counts against the places that the engine has for requests,
# so that there is always room for ordinary ones; what goes beyond it, all of them share.
ORDINARY_BYTES = 1 << 16
SHARED_BYTES = 1 << 28

# h11 refuses a head that is larger and not whole yet; one that came in one piece it takes at any
# size that a connection reads at once.
HEAD_BYTES = 1 << 14

# Answers that need no key, refusals among them, come one in so much time: a page takes 1 ms of the
# event loop, and four connections that requested it without end took half of it.
PUBLIC_PAUSE_S = 0.01


class Guard:
    """ASGI middleware that answers 401 without a key, and 413 to a body over the limit.

    A body that will not be used is not read: of a request without a valid key, or of one
    for a public path. So strangers have no part in the memory for bodies. Requests, and what comes
    of long bodies, enter one at a time.
    """

    def __init__(
        self, app: ASGIApp, settings: Settings, max_body_bytes: int, num_places: int
    ) -> None:
        """Guard an app whose engine takes `num_places` requests, those that wait included."""
        self._app = app
        self._settings = settings
        self._max_body_bytes = max_body_bytes
        self._body_budget = BodyBudget(
            ORDINARY_BYTES, num_places * ORDINARY_BYTES, max(SHARED_BYTES, max_body_bytes)
        )
        self._gate, self._public_gate = AdmissionGate(), AdmissionGate(PUBLIC_PAUSE_S)

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
            body = await self._admit(scope, headers, receive)
        except Problem as problem:
            if b"expect" in headers:  # neither side can know whether the body follows
                problem.headers = problem.headers | {"Connection": "close"}
            await send_problem(problem, send)
            return
        if body is not None:  # None: the client left before the answer
            await self._app(scope, Replay(body, receive), send)

    async def _admit(
        self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive
    ) -> bytes | None:
        """Return the body that the app may see; None where the client left before it was sent."""
        if _head_bytes(scope) > HEAD_BYTES:
            raise Problem(
                431,
                f"the head of the request is larger than this server's limit of {HEAD_BYTES} bytes",
                code="head_too_large",
                headers={"Connection": "close"},
            )
        if b"transfer-encoding" in headers and b"content-length" in headers:
            raise Problem(
                400,
                "Transfer-Encoding and Content-Length both say where the body ends; send "
                "one of them",
                code="ambiguous_length",
                headers={"Connection": "close"},
            )
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        caller = self._settings.caller_of(authorization, scope.get("client"))
        scope.setdefault("state", {})["caller"] = caller
        client = caller.client
        is_public = scope["path"] in PUBLIC_PATHS or scope["path"].startswith(PUBLIC_PREFIX)
        is_known = self._settings.accepts(caller.key)
        if is_public or not is_known:
            await self._public_gate.enter(client)
        if is_public:
            return b""
        if not is_known:
            raise _no_key()
        await self._gate.enter(client)
        body = self._whole(plain_cycle(receive))
        return await self._read_in_time(client, headers, receive) if body is None else body

    def _whole(self, cycle: PlainCycle | None) -> bytes | None:
        """Return the body of a plain request that came as a whole."""
        body = None if cycle is None else cycle.receive_nowait()
        if body is not None:
            if len(body) > self._max_body_bytes:
                raise _too_large(self._max_body_bytes)
            self._body_budget.take(0, len(body))
            self._body_budget.give_back(len(body))
        return body

    async def _read_in_time(
        self, client: Client, headers: Mapping[bytes, bytes], receive: Receive
    ) -> bytes | None:
        limit_s = self._settings.body_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._read(client, headers, receive)
        except TimeoutError as late:
            raise Problem(
                408,
                f"the body did not arrive within {limit_s:g} seconds",
                code="body_timeout",
                headers={"Connection": "close"},
            ) from late

    async def _read(
        self, client: Client, headers: Mapping[bytes, bytes], receive: Receive
    ) -> bytes | None:
        """Return the whole body, or None if the client left before it was sent."""
        limit = self._max_body_bytes
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > limit:
            raise _too_large(limit)
        chunks: list[bytes] = []
        num_bytes = 0
        more = True
        try:
            while more:
                if num_bytes >= ORDINARY_BYTES:  # what is not taken, the connection does not read
                    await self._gate.enter(client, num_bytes // ORDINARY_BYTES)
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                chunk = message.get("body", b"")
                if num_bytes + len(chunk) > limit:
                    raise _too_large(limit)
                self._body_budget.take(num_bytes, len(chunk))
                num_bytes += len(chunk)
                chunks.append(chunk)
                more = message.get("more_body", False)
        finally:
            self._body_budget.give_back(num_bytes)
        return bytes(chunks[0]) if len(chunks) == 1 else b"".join(chunks)


class BodyBudget:
    """The memory for bodies that are not whole yet: a part for ordinary ones, and a shared rest."""

    def __init__(self, ordinary_bytes: int, own_bytes: int, shared_bytes: int) -> None:
        """Make room: the first `ordinary_bytes` of each body fit into `own_bytes` together."""
        self._ordinary_bytes = ordinary_bytes
        self.own_bytes, self.shared_bytes = own_bytes, shared_bytes  # left

    def take(self, num_bytes: int, more_bytes: int) -> None:
        """Take room for more of a body that has `num_bytes`; raises Problem 429 without any."""
        own = self._own(num_bytes + more_bytes) - self._own(num_bytes)
        if own > self.own_bytes or more_bytes - own > self.shared_bytes:
            raise busy("too many bodies arrive at once; try again later")
        self.own_bytes -= own
        self.shared_bytes -= more_bytes - own

    def give_back(self, num_bytes: int) -> None:
        """Give back what a body of that many bytes has taken."""
        self.own_bytes += self._own(num_bytes)
        self.shared_bytes += num_bytes - self._own(num_bytes)

    def _own(self, num_bytes: int) -> int:
        return min(num_bytes, self._ordinary_bytes)


def _head_bytes(scope: Scope) -> int:
    """Return how long the head of a request was on the wire, without spaces that mean nothing."""
    query = scope.get("query_string", b"")
    target = len(scope.get("raw_path", b"")) + len(query) + bool(query)
    lines = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    return len(scope["method"]) + target + len("  HTTP/1.1\r\n\r\n") + lines


def _no_key() -> Problem:
    return Problem(
        401,
        "a valid key is needed: send it as 'Authorization: Bearer KEY'",
        type="authentication_error",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _too_large(limit: int) -> Problem:
    return Problem(
        413, f"the body is larger than this server's limit of {limit} bytes", code="body_too_large"
    )
