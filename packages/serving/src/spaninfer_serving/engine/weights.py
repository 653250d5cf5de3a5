"""The weights of an engine, for operators: given back, read again, exchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from spaninfer_engine import CheckpointError, ConfigError, EngineState

from spaninfer_serving.engine.gate import Gate
from spaninfer_serving.engine.in_flight import InFlight
from spaninfer_serving.settings import Settings
from spaninfer_serving.wire.admin import Sleeping, SleepMode
from spaninfer_serving.wire.errors import Problem

if TYPE_CHECKING:
    from spaninfer_engine import Engine

LOOK_AGAIN_S = 0.02

P = ParamSpec("P")
T = TypeVar("T")


class WeightsControl:
    """Changes to an engine's weights, one at a time, for the tasks of one event loop.

    A change that has begun goes on where its client leaves.
    """

    def __init__(self, engine: Engine, gate: Gate, in_flight: InFlight, settings: Settings) -> None:
        self._engine, self._gate, self._in_flight = engine, gate, in_flight
        self._folder, self._drain_s = settings.weights_folder, settings.drain_s
        self._turn = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()

    @property
    def sleeping(self) -> Sleeping:
        """Return whether the engine sleeps."""
        return Sleeping.of(is_sleeping=self._engine.is_asleep)

    async def sleep(self, mode: SleepMode) -> Sleeping:
        """Give weights and KV cache back; requests are refused from now on.

        Those that run are waited for or aborted; with `refuse`, Problem 409 where there are some.
        """
        return await self._whole(self._sleep(mode))

    async def wake_up(self) -> Sleeping:
        """Read the weights again; Problem 503 where that fails, and the engine sleeps on."""
        return await self._whole(self._wake_up())

    async def update(self, model_path: str, *, abort: bool, version: str | None) -> tuple[str, int]:
        """Exchange the weights for those of a folder below the one of the settings.

        Requests that run are waited for, or aborted; those that come wait until it is done. Returns
        the version, and how many ran. Raises Problem 400 for a folder that will not do, and 409
        where requests are frozen.
        """
        return await self._whole(self._update(model_path, abort, version))

    async def _whole(self, change: Awaitable[T]) -> T:
        """Make a change in its turn, to its end."""

        async def in_turn() -> T:
            async with self._turn:
                return await change

        task = asyncio.ensure_future(in_turn())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    async def _sleep(self, mode: SleepMode) -> Sleeping:
        if self._engine.is_asleep:
            return self.sleeping
        if mode == "refuse" and self._is_busy:
            raise Problem(
                409,
                "requests are running; give mode=wait or mode=abort, or drain the server first",
                param="mode",
                code="busy",
            )
        self._refuse_frozen(abort=mode == "abort")
        self._gate.note_asleep(is_asleep=True)
        try:
            await self._idle(abort=mode == "abort")
            await _in_daemon(self._engine.sleep, self._drain_s)
        finally:
            self._note()
        return self.sleeping

    async def _wake_up(self) -> Sleeping:
        try:
            await _in_daemon(self._engine.wake_up)
        except (ConfigError, CheckpointError) as error:
            raise Problem(
                503, f"the engine is still asleep: {error}", type="server_error", code="asleep"
            ) from error
        finally:
            self._note()
        return self.sleeping

    async def _update(self, model_path: str, abort: bool, version: str | None) -> tuple[str, int]:
        folder = await _in_daemon(self._below, model_path)
        self._refuse_frozen(abort=abort)
        with _as_problems():  # before any request is aborted for it
            await _in_daemon(self._engine.check_weights, folder)
        num_running = len(self._in_flight)
        self._gate.note_changing(is_changing=True)
        try:
            await self._idle(abort=abort)
            with _as_problems():
                await _in_daemon(self._engine.update_weights, folder, self._drain_s)
            if version is not None:
                self._gate.note_version(version)
        finally:
            self._note()
            self._gate.note_changing(is_changing=False)
        return self._gate.state.weight_version, num_running

    async def _idle(self, *, abort: bool) -> None:
        """Wait until nothing runs, or end it."""
        if abort:
            self._in_flight.abort_all()
        await self._in_flight.wait_idle()
        while self._is_busy:
            await asyncio.sleep(LOOK_AGAIN_S)

    def _refuse_frozen(self, *, abort: bool) -> None:
        if self._gate.state.is_frozen and self._is_busy and not abort:
            raise Problem(
                409,
                "requests are kept by a pause, and their progress would be lost; resume "
                "or abort them first",
                code="busy",
            )

    @property
    def _is_busy(self) -> bool:
        stats = self._engine.stats()
        is_running = stats.state is EngineState.RUNNING
        return bool(len(self._in_flight) or (is_running and (stats.running or stats.waiting)))

    def _note(self) -> None:
        self._gate.note_asleep(is_asleep=self._engine.is_asleep)

    def _below(self, given: str) -> Path:
        """Return a path below the folder of weights."""
        if self._folder is None:
            raise Problem(
                403,
                "weights are only read from a folder that the server was started with; "
                "start it with --weights-folder",
                type="permission_error",
                code="not_supported",
            )
        root = self._folder.resolve()
        with suppress(OSError, RuntimeError, ValueError):  # it is not there; a loop; a NUL
            path = (root / given).resolve(strict=True)
            if path.is_relative_to(root) and path != root:
                return path
        raise Problem(
            400,
            "model_path names nothing in the folder of --weights-folder; give a path "
            "relative to it",
            param="model_path",
            code="weights_refused",
        )


async def _in_daemon(function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Call a function in a thread for which neither the event loop nor the process waits in the
    end: it reads files, for ever where a network disk is gone. Closing the engine says so.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def tell(note: Callable[[Any], None], what: object) -> None:
        def tell_now() -> None:
            if not result.done():  # cancelled
                note(what)

        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell_now)

    def work() -> None:
        try:
            value = function(*given, **named)
        except BaseException as error:
            tell(result.set_exception, error)
        else:
            tell(result.set_result, value)

    Thread(target=work, name="weights", daemon=True).start()
    return await result


@contextmanager
def _as_problems() -> Iterator[None]:
    """Raise Problem for what is wrong with weights that operators name."""
    try:
        yield
    except (ConfigError, CheckpointError) as error:
        raise Problem(400, str(error), param="model_path", code="weights_refused") from error
