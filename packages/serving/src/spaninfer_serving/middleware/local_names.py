"""Admission by host name, for servers that only this machine may reach."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from spaninfer_serving.error_mapping import send_problem
from spaninfer_serving.settings import is_loopback
from spaninfer_serving.wire.errors import Problem


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
        await send_problem(problem, send)


@lru_cache(maxsize=64)
def _is_local(host: str) -> bool:
    """Return whether a Host header, with or without a port, names this machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return is_loopback(name) or name.endswith(".localhost")
