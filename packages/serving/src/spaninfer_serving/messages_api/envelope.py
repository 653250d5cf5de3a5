"""Conventions of Anthropic's clients around the bodies: keys, versions, ids, errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json, to_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PREFIX = "/v1/messages"
ID_HEADER = b"request-id"

# Statuses of which the message alone does not say the type; others have OpenAI's words for it.
TYPES: Mapping[int, str] = {
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


def error_body(error: Mapping[str, Any], status: int, request_id: str | None) -> dict[str, Any]:
    """Return the body of a refusal, made from OpenAI's."""
    kind = TYPES.get(status, error["type"])
    said = {"type": kind, "message": error["message"]}
    return {"type": "error", "error": said, "request_id": request_id}


class ApiKeyHeader:
    """ASGI middleware that takes `x-api-key: KEY` for `Authorization: Bearer KEY`, if that lacks.

    To be put around whatever asks for keys.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        headers = dict(scope.get("headers", ()))
        if b"x-api-key" in headers and b"authorization" not in headers:
            bearer = (b"authorization", b"Bearer " + headers[b"x-api-key"])
            scope = {**scope, "headers": [*scope["headers"], bearer]}
        await self._app(scope, receive, send)


class AnthropicErrors:
    """ASGI middleware that gives refusals under /v1/messages the body that its clients read.

    Refusals are made in many places, before and behind the routes, all in OpenAI's form. Answers
    have their id under this API's name, too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; its refusal waits until it is whole."""
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        refusal: Message | None = None
        body = b""

        async def translated(message: Message) -> None:
            nonlocal refusal, body
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_ids(message["headers"])]
                if message["status"] >= 400:
                    refusal = message
                    return
            elif refusal is not None:
                body += message.get("body", b"")
                if message.get("more_body", False):
                    return
                start, message = _translated(refusal, body)
                await send(start)
            await send(message)

        await self._app(scope, receive, translated)


def _ids(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(ID_HEADER, value) for name, value in headers if name == b"x-request-id"]


def _translated(start: Message, body: bytes) -> tuple[Message, Message]:
    """Return the two messages of a refusal in this API's form."""
    headers = start["headers"]
    said = from_json(body)["error"] if body else {"type": "api_error", "message": ""}
    request_id = dict(headers).get(ID_HEADER, b"").decode() or None
    made = to_json(error_body(said, start["status"], request_id))
    kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    start = {**start, "headers": [*kept, (b"content-length", str(len(made)).encode())]}
    return start, {"type": "http.response.body", "body": made}
