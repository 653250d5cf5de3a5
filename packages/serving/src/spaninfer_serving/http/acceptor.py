"""Connections from a listener: taken at once, let in one at a time, fair among clients.

The system hands connections out in the order in which they came. Behind 256 others, each of which
cost a transport, a parsed request and its first steps before the next was taken, an ordinary client
waited 195 ms (two cores of an EPYC, 2026-11-23). So a connection is taken and its first bytes are
read at the cost of three system calls; they say whose it is. Then it waits for its client's turn,
and one enters per round of the event loop. A client that sends nothing never enters.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spaninfer_serving.admission.fair_queue import Client, FairQueue
from spaninfer_serving.http.connection_slots import ConnectionSlots
from spaninfer_serving.http.protocol import HEAD_S
from spaninfer_serving.observability.figures import Figures

log = logging.getLogger(__name__)

AT_ONCE = 64  # connections in one round of the loop; 25 µs each
FIRST_BYTES = 1 << 12  # that are read of each before it enters: nearly all heads are shorter

# All processes wake for a connection, and which of them is first is no matter of how many it has:
# 64 that sent short requests gave four processes 0.27, 0.20, 0.11 and 0.06 CPUs of work.
MORE = 2  # connections than another process has; beyond that this one waits
WAIT_S = 0.002
FAILED_S = 1.0  # behind an accept that failed, as for want of files


@dataclass(frozen=True, slots=True)
class Entrance:
    """An acceptor's view of its server."""

    make: Callable[[bytes], asyncio.Protocol]
    """Returns the protocol of a connection whose first bytes have been read."""
    client_of: Callable[[bytes, tuple[Any, ...]], Client]
    """Returns whose connection it is, by its first bytes and its address."""
    num_inside: Callable[[], int]
    """Returns how many connections have a protocol."""
    slots: ConnectionSlots
    tls: ssl.SSLContext | None = None
    """Connections are encrypted: their first bytes say no client, and are left to asyncio."""


class Acceptor:
    """Takes connections, while no other process that shares the listener has fewer."""

    def __init__(self, listener: socket.socket, entrance: Entrance, figures: Figures) -> None:
        self._listener, self._entrance, self._figures = listener, entrance, figures
        self._outside: set[_Arrival] = set()
        self._queue: FairQueue[_Arrival] = FairQueue()
        self._tasks: set[asyncio.Task[object]] = set()  # of those that enter
        self._is_entering = self._is_closed = False

    @property
    def num_connections(self) -> int:
        """The number of connections, those that have not entered included."""
        return len(self._outside) + self._entrance.num_inside()

    @property
    def is_encrypted(self) -> bool:
        """True if connections begin with a handshake of TLS."""
        return self._entrance.tls is not None

    def open(self) -> None:
        """Begin to take connections, in the running loop."""
        self.loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        self.loop.add_reader(self._listener.fileno(), self._offer)

    async def close(self) -> None:
        """Take no more; let those in that have sent something. The listener stays open."""
        if not self._is_closed:
            self._is_closed = True
            self.loop.remove_reader(self._listener.fileno())
            while len(self._queue):
                self._enter(self._queue.take())
            for arrival in list(self._outside):
                arrival.give_way()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _offer(self) -> None:
        for _ in range(AT_ONCE):
            if self._figures.has_more_connections(MORE):
                self._wait(WAIT_S, self._accept)
                return
            if not self._accept():
                return

    def _wait(self, seconds: float, then: Callable[[], object]) -> None:
        """Look away for a while."""
        self.loop.remove_reader(self._listener.fileno())
        self.loop.call_later(seconds, self._look_again, then)

    def _look_again(self, then: Callable[[], object]) -> None:
        if not self._is_closed:
            self.loop.add_reader(self._listener.fileno(), self._offer)
            then()

    def _accept(self) -> bool:
        """Take a connection; return whether there may be another one, and a place for it.

        Where there is none, the descriptor of the one that gives way is free some rounds later.
        """
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as reason:
            log.warning("a connection cannot be accepted: %s", reason)
            self._wait(FAILED_S, _nothing)
            return False
        connection.setblocking(False)
        self._figures.num_connections += 1
        arrival = _Arrival(connection, address, self)
        self._outside.add(arrival)
        self._entrance.slots.waiting[arrival] = None
        was_full = self._entrance.slots.make_room(self.num_connections)
        if not arrival.is_over and not arrival.look():
            arrival.wait(self.loop)
        return not was_full

    def queue(self, arrival: _Arrival) -> None:
        """Let an arrival wait for its client's turn."""
        self._entrance.slots.waiting.pop(arrival, None)
        client = self._entrance.client_of(arrival.first, arrival.address)
        self._queue.put(client, 1, arrival)
        if not self._is_entering:
            self._is_entering = True
            self.loop.call_soon(self._enter_next)

    def forget(self, arrival: _Arrival) -> None:
        """Count an arrival no longer: it has entered, or is closed."""
        self._entrance.slots.waiting.pop(arrival, None)
        self._outside.discard(arrival)

    def _enter_next(self) -> None:
        if len(self._queue):
            self._enter(self._queue.take())
        self._is_entering = len(self._queue) > 0
        if self._is_entering:
            self.loop.call_soon(self._enter_next)

    def _enter(self, arrival: _Arrival) -> None:
        self.forget(arrival)
        make, first, tls = self._entrance.make, arrival.first, self._entrance.tls
        entering = self.loop.connect_accepted_socket(
            lambda: make(b"" if tls else first),
            arrival.connection,
            ssl=tls,
            ssl_handshake_timeout=HEAD_S if tls else None,
        )
        task: asyncio.Task[object] = asyncio.ensure_future(entering)
        self._tasks.add(task)
        task.add_done_callback(self._entered)

    def _entered(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (reason := task.exception()) is not None:
            log.debug("a connection has not entered: %s", reason)  # as for a failed handshake


class _Arrival:
    """A connection that has not entered yet."""

    def __init__(
        self, connection: socket.socket, address: tuple[Any, ...], acceptor: Acceptor
    ) -> None:
        self.connection, self.address, self._acceptor = connection, address, acceptor
        self._flags = socket.MSG_PEEK if acceptor.is_encrypted else 0
        self.first = b""
        self.is_over = False
        self._loop: asyncio.AbstractEventLoop | None = None  # while it is waited for
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> bool:
        """Read the first bytes if they are there; return False if nothing has come."""
        try:
            self.first = self.connection.recv(FIRST_BYTES, self._flags)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:  # the client has broken off
            self.give_way()
            return True
        if self.first:
            self._stop_waiting()
            self._acceptor.queue(self)
        else:
            self.give_way()
        return True

    def wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look as soon as something comes, for as long as the head of a request may take."""
        self._loop = loop
        loop.add_reader(self.connection.fileno(), self.look)
        self._timer = loop.call_later(HEAD_S, self.give_way)

    def _stop_waiting(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self.connection.fileno())
            self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def give_way(self) -> None:
        """Close it: its client has left, or has said nothing for too long."""
        self.is_over = True
        self._stop_waiting()
        self._acceptor.forget(self)
        self.connection.close()


def _nothing() -> None:
    """Only wait."""
