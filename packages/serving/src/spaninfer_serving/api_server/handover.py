"""Requests of one event loop, handed to the engine's process some at a time.

A step of a few tokens costs nearly what one of many does, and so does a message. So what arrives
together begins together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

# Turns of the event loop without a further request: a request that is read in one is started in the
# next, by its task.
QUIET_TURNS: Final = 2

# While requests keep coming, the first waits no longer.
MAX_WAIT_S: Final = 3e-3


class Handover:
    """Calls `hand_over` when an event loop has no more requests to start for now, or in time."""

    def __init__(self, hand_over: Callable[[], None]) -> None:
        self._hand_over = hand_over
        self._num_started = self._num_seen = self._num_quiet = 0
        self._until_s: float | None = None  # None: nothing waits

    def note(self) -> None:
        """Note that a request waits; called in the loop."""
        self._num_started += 1
        if self._until_s is None:
            self._until_s, self._num_quiet = monotonic() + MAX_WAIT_S, 0
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        assert self._until_s is not None, "something waits"
        is_quiet = self._num_seen == self._num_started
        self._num_seen, self._num_quiet = self._num_started, self._num_quiet + 1 if is_quiet else 0
        if self._num_quiet < QUIET_TURNS and monotonic() < self._until_s:
            asyncio.get_running_loop().call_soon(self._look)
        else:
            self._until_s = None
            self._hand_over()
