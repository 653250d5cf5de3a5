"""Profiles of an engine that operators start and stop: one at a time, each a file of a folder."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from spaninfer_serving.wire.errors import Problem

if TYPE_CHECKING:
    from spaninfer_engine import Engine
    from spaninfer_engine.serving import Profiler

# Events of a busy GPU take some megabytes of host memory a second.
MAX_PROFILE_S = 60.0


@dataclass(slots=True)
class Profiling:
    """The profile of an engine; for the tasks of one event loop."""

    engine: Engine
    folder: Path | None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _written: asyncio.Task[str] | None = field(default=None, init=False)  # not asked for yet

    async def start(self) -> None:
        """Begin a profile, which ends after a minute by itself; Problem where none can be."""
        if self.folder is None:
            raise Problem(
                403,
                "profiles need a folder to be written to; start the server with --profile-dir",
                type="permission_error",
                code="not_supported",
            )
        if self._written is not None and not self._written.done():
            raise Problem(
                409, "a profile is already running; stop it first", code="profile_under_way"
            )
        profiler = self.engine.profiler()
        self._stopping = asyncio.Event()
        self._written = asyncio.ensure_future(self._record(profiler, self.folder))

    async def stop(self) -> str:
        """End the profile; return the name of its file. Problem where none was begun."""
        if self._written is None:
            raise Problem(409, "no profile is running; start one", code="no_profile")
        written, self._written = self._written, None
        self._stopping.set()
        return await asyncio.shield(written)

    async def _record(self, profiler: Profiler, folder: Path) -> str:
        name = f"spaninfer-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        await asyncio.to_thread(profiler.start)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), MAX_PROFILE_S)
        try:
            return (await asyncio.to_thread(profiler.stop, folder, name)).name
        except OSError as refused:
            raise Problem(
                507,
                f"the profile cannot be written to --profile-dir: {refused.strerror}; make room "
                "there, or start the server with another folder",
                type="server_error",
                code="not_written",
            ) from refused
