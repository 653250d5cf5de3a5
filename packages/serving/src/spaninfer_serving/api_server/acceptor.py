"""Connections from a listener that several processes share."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from spaninfer_serving.figures import Figures

log = logging.getLogger(__name__)

# All processes wake for a connection, and which of them is first is no matter of how many it has:
# 64 that sent short requests gave four processes 0.27, 0.20, 0.11 and 0.06 CPUs of work.
MORE = 2  # connections than another process has; beyond that this one waits
WAIT_S = 0.002
FAILED_S = 1.0  # behind an accept that failed, as for want of files


class Acceptor:
    """Takes a connection per round of the loop; behind processes that have fewer."""

    def __init__(
        self, listener: socket.socket, make: Callable[[], asyncio.Protocol], figures: Figures
    ) -> None:
        self._listener, self._make, self._figures = listener, make, figures
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_closed = False

    def open(self) -> None:
        """Begin to take connections, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._offer)

    def close(self) -> None:
        """Take no more; the listener stays open."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._listener.fileno())

    def _offer(self) -> None:
        if self._figures.has_more_connections(MORE):
            self._wait(WAIT_S, self._accept)
        else:
            self._accept()

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        """Look away for a while."""
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(seconds, self._look_again, then)

    def _look_again(self, then: Callable[[], None]) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener.fileno(), self._offer)
            then()

    def _accept(self) -> None:
        """Take a connection, if no other process has."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as reason:
            log.warning("a connection cannot be accepted: %s", reason)
            self._wait(FAILED_S, lambda: None)
            return
        connection.setblocking(False)
        self._figures.num_connections += 1
        connecting = self._loop.connect_accepted_socket(self._make, connection)
        task: asyncio.Task[object] = asyncio.ensure_future(connecting)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
