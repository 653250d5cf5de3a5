"""The engine's process among API servers: starts them, answers them, drains them."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import subprocess
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, Any

from spaninfer_engine import ConfigError, EngineConfig

from spaninfer_serving.admission.fair_queue import Client
from spaninfer_serving.api_server.messages import Configure, Drain, Gate, LogFrom
from spaninfer_serving.api_server.processes import ApiServerProcesses
from spaninfer_serving.api_server.records import (
    plain,
    plain_array,
    plain_config,
    plain_map,
    plain_stats,
    typed_texts,
)
from spaninfer_serving.api_server.seat import Operations, Seat
from spaninfer_serving.engine.client import set_log_level
from spaninfer_serving.engine.control import EngineControl
from spaninfer_serving.engine.response_store import StoredResponse
from spaninfer_serving.engine.text_batcher import TextBatcher
from spaninfer_serving.settings import Settings

if TYPE_CHECKING:
    from spaninfer_engine import Engine

log = logging.getLogger(__name__)

YOUNG_S = 10.0  # a process that lives no longer is started anew later each time
MAX_WAIT_S = 30.0
KILL_AFTER_S = 5.0  # behind the time to drain


class ApiServers:
    """The API servers of one engine, from their start to their end."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        listener: socket.socket,
        processes: ApiServerProcesses | None = None,
    ) -> None:
        """Take a listener that listens, and processes that were started before, if any were.

        Raises ConfigError for what API servers cannot do.
        """
        config = engine.config
        if config is None:
            raise ConfigError(
                "--api-server-count needs an engine that was loaded from a folder; got one "
                "built from components"
            )
        self._config: EngineConfig = config
        self._engine, self._settings, self._listener = engine, settings, listener
        self._control = EngineControl.new(engine, settings)
        self._batcher = TextBatcher(engine)
        self._seats: dict[int, Seat] = {}  # by the row of the process
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._is_draining = self._has_started = self._has_lost_one = self._is_left = False
        self._changed = asyncio.Event()
        self._started = processes or ApiServerProcesses(settings, listener)  # closed by `run`

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until SIGINT or SIGTERM, `drain`, or the engine's end.

        Calls `ready` when all of them answer.
        """
        asyncio.run(self._run(ready))

    async def _run(self, ready: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._control.gate.changed = self._tell_gate
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.add_signal_handler(number, self.drain)
        threading.Thread(target=self._watch_engine, name="engine-watch", daemon=True).start()
        rows = range(self._settings.api_servers)
        lives = [asyncio.ensure_future(self._live(row)) for row in rows]
        try:
            await self._all_ready()
            if not self._is_draining:
                ready()
            await asyncio.wait(lives)
        finally:
            for life in lives:
                life.cancel()
            if not self._is_left:
                for process in self._processes.values():
                    process.kill()
            self._listener.close()
            self._started.close()

    def drain(self) -> None:
        """Have all API servers end: when they have answered, and at once the second time."""
        self._is_draining = True
        self._listener.close()  # the others have it, and close it as well
        for seat in self._seats.values():
            seat.link.send(Drain())
        self._changed.set()

    def _watch_engine(self) -> None:
        self._engine.wait_over()
        with suppress(RuntimeError):  # the loop is closed: the API servers have ended before
            self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        """Leave the API servers to themselves: the engine is over. They send what they have
        received, or else that the engine is over, and end.
        """
        self._is_draining = self._is_left = True
        for seat in self._seats.values():
            seat.link.end_soon()
        self._changed.set()

    @property
    def are_ready(self) -> bool:
        """True if all of them answer."""
        return len(self._seats) == self._settings.api_servers and all(
            seat.ready.is_set() for seat in self._seats.values()
        )

    async def _all_ready(self) -> None:
        """Wait until each has said so once; ConfigError where one ends before."""
        while not self._is_draining:
            if self.are_ready:
                self._has_started = True
                return
            if self._has_lost_one:
                raise ConfigError("an API server process exited during start; see its output")
            self._changed.clear()
            await self._changed.wait()

    async def _live(self, row: int) -> None:
        """Keep one API server running until all drain."""
        wait_s = 0.0
        while not self._is_draining:
            begun_s = monotonic()
            await self._run_one(row)
            if self._is_draining:
                return
            if not self._has_started:
                self._has_lost_one = True
                self._changed.set()
                return
            lived_s = monotonic() - begun_s
            wait_s = 0.0 if lived_s > YOUNG_S else min(2 * wait_s + 0.1, MAX_WAIT_S)
            log.error(
                "API server %d exited after %.1f s and its requests failed; starting another one",
                row,
                lived_s,
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._drained(), wait_s)

    async def _drained(self) -> None:
        while not self._is_draining:
            self._changed.clear()
            await self._changed.wait()

    async def _run_one(self, row: int) -> None:
        """Run one process to its end."""
        process, end = self._started.take()
        self._processes[row] = process
        over = asyncio.Event()
        seat = self._seats[row] = Seat(self._control, self._operations(), end, over.set)
        seat.link.open()
        seat.link.send(self._configuration(row))
        self._tell_gate()
        waiting = asyncio.ensure_future(seat.ready.wait())
        waiting.add_done_callback(lambda _: self._changed.set())
        if self._is_draining:
            seat.link.send(Drain())
        try:
            await self._end_of(over)
        finally:
            waiting.cancel()
            if not self._is_left:
                process.kill()  # a link that has ended is not mended
                await asyncio.to_thread(process.wait)

    async def _end_of(self, over: asyncio.Event) -> None:
        """Wait until a link has ended; in vain no longer than a drain may take."""
        ended = asyncio.ensure_future(over.wait())
        drained = asyncio.ensure_future(self._drained())
        await asyncio.wait({ended, drained}, return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
        await asyncio.wait({ended}, timeout=self._settings.drain_s + KILL_AFTER_S)
        ended.cancel()

    def _configuration(self, row: int) -> Configure:
        engine, settings = self._engine, self._settings
        each = replace(settings, media_workers=ceil(settings.media_workers / settings.api_servers))
        return Configure(
            config=plain_config(self._config),
            resolved=plain(engine.resolved),
            settings=plain(each),
            context=engine.context,
            row=row,
        )

    def _tell_gate(self) -> None:
        for seat in self._seats.values():
            seat.link.send(Gate(self._control.gate.state))

    def _operations(self) -> Operations:
        """Return what API servers may call."""
        engine, control = self._engine, self._control

        async def pause(mode: Any, clear_cache: bool) -> Any:  # of a message
            return (await control.pause(mode, clear_cache=clear_cache)).model_dump()

        async def sleep(mode: Any) -> Any:
            return (await control.weights.sleep(mode)).model_dump()

        async def wake_up() -> Any:
            return (await control.weights.wake_up()).model_dump()

        async def update_weights(model_path: str, abort: bool, version: str | None) -> Any:
            return await control.weights.update(model_path, abort=abort, version=version)

        async def log_from(level: str) -> None:
            set_log_level(level)
            for seat in self._seats.values():
                seat.link.send(LogFrom(level))

        async def rows(client: Sequence[str], texts: Any) -> Any:
            found, begun_s = await self._batcher.rows(Client(*client), typed_texts(texts))
            return plain_array(found), begun_s

        def keep_response(account: str, key: str, json: bytes, conversation: list[bytes]) -> None:
            control.stored.put(account, key, StoredResponse(json, tuple(conversation)))

        def kept_response(account: str, key: str, param: str | None) -> Any:
            stored = control.stored.get(account, key, param)
            return stored.json, stored.conversation

        return {
            "stats": _soon(lambda: plain_stats(engine.stats())),
            "cache_map": _soon(lambda: plain_map(engine.cache_map())),
            "reset_prefix_cache": _soon(engine.reset_prefix_cache),
            "pause": pause,
            "resume": _soon(lambda: control.resume().model_dump()),
            "pause_state": _soon(lambda: control.state.model_dump()),
            "abort": _soon(control.abort),
            "drain": control.drain,
            "sleep": sleep,
            "wake_up": wake_up,
            "sleeping": _soon(lambda: control.weights.sleeping.model_dump()),
            "update_weights": update_weights,
            "start_profile": control.profiling.start,
            "stop_profile": control.profiling.stop,
            "num_in_flight": _soon(lambda: len(control.in_flight)),
            "admit": _soon(control.in_flight.admit),
            "log_from": log_from,
            "rows": rows,
            "keep_response": _soon(keep_response),
            "kept_response": _soon(kept_response),
            "forget_response": _soon(control.stored.delete),
        }


def _soon(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Return a function as one that is awaited."""

    async def called(*arguments: Any) -> Any:
        return function(*arguments)

    return called
