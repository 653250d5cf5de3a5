"""Request targets in absolute form, as clients send them that take this server for a proxy."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#]*)")


class OriginForm:
    """ASGI middleware that makes GET http://host/path what GET /path with that host would be.

    Every server has to take the former (RFC 9112, 3.2.2), and believes it rather than the Host
    header. To be put around whatever looks at paths or hosts.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        await self._app(origin_form(scope), receive, send)


def origin_form(scope: Scope) -> Scope:
    """Return the scope of a request with its target in origin form."""
    if scope["type"] != "http" or scope["path"].startswith("/"):
        return scope
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    found = _ABSOLUTE.match(raw_path)
    if found is None:
        return scope
    path = scope["path"][len(found[0].decode()) :]
    headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"host"]
    return {
        **scope,
        "path": path or "/",
        "raw_path": raw_path[found.end() :] or b"/",
        "headers": [(b"host", found[1]), *headers],
    }
