"""The gate in front of the engine: requests wait before it while the server is paused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from spaninfer_serving.error_mapping import RETRY_AFTER_S
from spaninfer_serving.wire.errors import Problem


class Gate:
    """Open, shut (requests wait), or closed (they are refused); for the tasks of one event loop."""

    def __init__(self) -> None:
        self._is_open = asyncio.Event()
        self._is_open.set()
        self.is_closed = False
        self.changed: Callable[[], None] = _unwatched  # called behind each change

    @property
    def is_shut(self) -> bool:
        """True while requests wait."""
        return not self._is_open.is_set()

    def shut(self) -> None:
        """Hold requests back from now on."""
        self._is_open.clear()
        self.changed()

    def close(self) -> None:
        """Refuse requests from now on, those that wait as well."""
        self.is_closed = True
        self._is_open.set()
        self.changed()

    def show(self, *, is_shut: bool, is_closed: bool) -> None:
        """Be as the gate of another process is."""
        self.is_closed = is_closed
        if is_shut:
            self._is_open.clear()
        else:
            self._is_open.set()

    def open(self) -> None:
        """Let requests in, all that wait first."""
        self.is_closed = False
        self._is_open.set()
        self.changed()

    async def opened(self) -> bool:
        """Wait until the gate is no longer shut; return True."""
        return await self._is_open.wait()

    def check(self) -> None:
        """Raise Problem 503 where the gate is closed."""
        if self.is_closed:
            raise Problem(
                503,
                "the server drains and takes no more requests",
                type="server_error",
                code="draining",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )


def _unwatched() -> None:
    """Do nothing."""
