"""Workloads for the server of a mock model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

PROMPT: Final = "The quick brown fox jumps"
SHORT: Final = 4  # tokens of a whole answer
LONG: Final = 256  # tokens of a stream
SERVED: Final = 256  # requests in a step of a server, by default


@dataclass(frozen=True, slots=True)
class Workload:
    """Clients that send the same request again whenever it is answered."""

    name: str
    path: str
    body: Mapping[str, Any]
    num_clients: int

    @property
    def is_stream(self) -> bool:
        """True if answers are streamed: tokens are counted then, else requests."""
        return "stream" in self.body


def _workload(name: str, asked: Mapping[str, Any], num_clients: int) -> Workload:
    path = "/v1/chat/completions" if "messages" in asked else "/v1/completions"
    return Workload(name, path, {**asked, "temperature": 0, "ignore_eos": True}, num_clients)


_TEXT: Final = {"prompt": PROMPT}
_CHAT: Final = {"messages": [{"role": "user", "content": PROMPT}]}
_SHORT: Final = {"max_tokens": SHORT}
_STREAM: Final = {"max_tokens": LONG, "stream": True}

WORKLOADS: Final[Mapping[str, Workload]] = {
    workload.name: workload
    for workload in (
        _workload("short_completions", _TEXT | _SHORT, 64),
        _workload("short_chats", _CHAT | _SHORT, 64),
        _workload("streams_64", _TEXT | _STREAM, 64),
        _workload("chat_streams_64", _CHAT | _STREAM, 64),
        _workload("streams_256", _TEXT | _STREAM, 256),
        _workload("streams_1000", _TEXT | _STREAM, 1000),
    )
}


def places(names: Iterable[str]) -> int:
    """Return places in the steps for all clients of these workloads at a time, and no fewer than
    servers have.

    A stream that waits for a place has its head already, and would wait for its first token until
    others end.
    """
    return max(SERVED, *(WORKLOADS[name].num_clients for name in names))
