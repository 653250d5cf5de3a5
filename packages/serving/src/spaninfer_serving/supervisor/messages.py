"""Messages between the supervisor and the engine's process: JSON, a line each, and sockets."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from typing import TypeVar

MAX_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class ToEngine:
    """The first and only message to an engine's process; behind a restart with the listener."""

    num_restarts: int
    wait_s: float  # before it begins


@dataclass(frozen=True, slots=True)
class FromEngine:
    """A message of an engine's process: with the listener when it listens, and when it answers."""

    log_format: str
    drain_s: float
    ssl_certfile: str | None
    ssl_keyfile: str | None
    is_ready: bool = False


M = TypeVar("M", ToEngine, FromEngine)


def send(
    end: socket.socket, message: ToEngine | FromEngine, listener: socket.socket | None
) -> None:
    """Send a message, and with it a socket."""
    line = json.dumps(asdict(message)).encode() + b"\n"
    if listener is None:
        end.sendall(line)
    else:
        socket.send_fds(end, [line], [listener.fileno()])


def receive(end: socket.socket, kind: type[M]) -> tuple[M, socket.socket | None] | None:
    """Wait for a message; None where the other process is gone."""
    line, files = b"", list[int]()
    while not line.endswith(b"\n"):
        # A byte at a time: what follows is another message's, and may bring a socket of its own.
        try:
            data, more, _, _ = socket.recv_fds(end, 1, 1)
        except ConnectionError:  # it has not read its message
            return None
        files += more
        if not data:
            return None
        line += data
    return kind(**json.loads(line)), socket.socket(fileno=files[0]) if files else None
