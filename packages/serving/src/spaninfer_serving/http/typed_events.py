"""Server-sent events with names, as the Responses API and the Messages API have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

from spaninfer_serving.wire.errors import Problem


class TypedEvents:
    """Each event is named after its `type`; the last one of the answer ends the stream."""

    end = b""

    def __init__(self, error_body: Callable[[Problem], dict[str, Any]]) -> None:
        """Take what makes the body of an event with the type `error`."""
        self._error_body = error_body

    def events(self, chunk: Sequence[BaseModel]) -> bytes:
        """Return models as events that travel together; each has a `type`."""
        return b"".join(
            [
                _event(event.type, event.model_dump_json(by_alias=True).encode())  # type: ignore[attr-defined]
                for event in chunk
            ]
        )

    def error(self, problem: Problem) -> bytes:
        """Return a refusal as an event."""
        return _event("error", to_json(self._error_body(problem)))


def _event(kind: str, data: bytes) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"
