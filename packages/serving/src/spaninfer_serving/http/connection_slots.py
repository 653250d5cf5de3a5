"""Places for connections: as many as there are file descriptors for."""

from __future__ import annotations

import logging
from pathlib import Path
from time import monotonic
from typing import Protocol

try:
    import resource
except ImportError:  # Windows: a process may have as many sockets as memory holds
    _IS_LIMITED = False
else:
    _IS_LIMITED = True

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 1 << 14  # where files are not the limit, memory is: each may hold pieces read

# On Windows asyncio accepts this many before it looks at the first, and frees the descriptor of a
# closed one three rounds later. With uvicorn's 2048, descriptors ran out in between, and asyncio
# logs each attempt then: 62 MB in 26 s. (Elsewhere: acceptor.py.)
ACCEPTED_AT_ONCE = 8

# Descriptors that are not for connections: those of some rounds, and files that are opened later.
RESERVED = 64

SAY_EVERY_S = 1.0


class Connection(Protocol):
    """A connection that holds a slot."""

    def give_way(self) -> None:
        """Close it now."""


class ConnectionSlots:
    """A limit on connections that evicts the one that has been idle longest.

    Clients that connect and say nothing, or do not read, shut no one out: the connection that has
    waited longest for its client is closed, and only where none waits, the new one. The log says so
    once a second.
    """

    def __init__(self, num: int) -> None:
        self.num = num
        self.waiting: dict[Connection, None] = {}  # for their clients; the longest time first
        self._num_closed, self._said_at = 0, -SAY_EVERY_S

    def make_room(self, num_taken: int) -> bool:
        """Close one of those that wait, the new one among them, where all places are taken; return
        whether that was so.
        """
        if num_taken <= self.num:
            return False
        next(iter(self.waiting)).give_way()
        self._num_closed += 1
        now = monotonic()
        if now - self._said_at >= SAY_EVERY_S:
            log.warning(
                "all %d places for connections are taken; closed because their clients neither "
                "sent nor read: %d",
                self.num,
                self._num_closed,
            )
            self._num_closed, self._said_at = 0, now
        return True


def provide() -> ConnectionSlots:
    """Raise the process's limit of open files as far as is of use; return what it has places for.

    To be called when most files are open that will be.
    """
    return ConnectionSlots(min(MAX_CONNECTIONS, max(1, _num_files() - RESERVED)))


def _num_files() -> int:
    """Return how many more files this process may open, having raised the limit."""
    if not _IS_LIMITED:
        return MAX_CONNECTIONS + RESERVED
    num_open = len(list(Path("/dev/fd").iterdir()))
    wanted = num_open + RESERVED + MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted - num_open
    soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft - num_open
