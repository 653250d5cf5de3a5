"""The gate in front of the engine: requests wait before it while the server is paused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from spaninfer_serving.error_mapping import RETRY_AFTER_S, asleep
from spaninfer_serving.wire.errors import Problem


class GateState(NamedTuple):
    """The state of a gate: what it does with requests, and which weights answer those it lets in.

    Requests wait while it is shut: `is_paused` by operators, `is_changing` while weights are
    exchanged. They are refused while it is closed, and while the engine sleeps.
    """

    is_paused: bool = False
    is_frozen: bool = False  # no steps are computed for those that run
    is_changing: bool = False
    is_closed: bool = False
    is_asleep: bool = False
    weight_version: str = "default"


class Gate:
    """Open, shut (requests wait), or closed (they are refused); for the tasks of one event loop."""

    def __init__(self) -> None:
        self._is_open = asyncio.Event()
        self._is_open.set()
        self.state = GateState()
        self.changed: Callable[[], None] = _unwatched  # called behind each change

    @property
    def is_shut(self) -> bool:
        """True while requests wait."""
        return not self._is_open.is_set()

    def shut(self) -> None:
        """Hold requests back from now on."""
        self._change(is_paused=True)

    def note_frozen(self, *, is_frozen: bool) -> None:
        """Note whether the engine computes steps for those that are inside."""
        self._change(is_frozen=is_frozen)

    def close(self) -> None:
        """Refuse requests from now on, those that wait as well."""
        self._change(is_paused=False, is_closed=True)

    def open(self) -> None:
        """Let requests in, all that wait first; a sleeping engine refuses them still."""
        self._change(is_paused=False, is_closed=False)

    def note_asleep(self, *, is_asleep: bool) -> None:
        """Refuse requests while the engine sleeps."""
        self._change(is_asleep=is_asleep)

    def note_changing(self, *, is_changing: bool) -> None:
        """Hold requests back while weights are exchanged."""
        self._change(is_changing=is_changing)

    def note_version(self, weight_version: str) -> None:
        """Let requests in to other weights."""
        self._change(weight_version=weight_version)

    def _change(self, **changes: Any) -> None:
        self.show(self.state._replace(**changes))
        self.changed()

    def show(self, state: GateState) -> None:
        """Be as the gate of another process is."""
        self.state = state
        if state.is_paused or state.is_changing:
            self._is_open.clear()
        else:
            self._is_open.set()

    async def opened(self) -> bool:
        """Wait until the gate is no longer shut; return True."""
        return await self._is_open.wait()

    def check(self) -> None:
        """Raise Problem 503 where the gate is closed, or the engine sleeps."""
        if self.state.is_closed:
            raise Problem(
                503,
                "the server is draining and takes no more requests",
                type="server_error",
                code="draining",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        if self.state.is_asleep:
            raise asleep()


def _unwatched() -> None:
    """Do nothing."""
