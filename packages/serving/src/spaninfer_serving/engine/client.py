"""The engine as a service sees it: in this process, or in another one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from spaninfer_engine import AsyncEngine, CacheMap, EngineStats, OutputStream
from spaninfer_engine.serving import Frontend, Rows, Text

from spaninfer_serving.admission.fair_queue import Client
from spaninfer_serving.engine.control import EngineControl, StartRequest
from spaninfer_serving.engine.gate import Gate
from spaninfer_serving.engine.response_store import StoredResponse
from spaninfer_serving.engine.text_batcher import TextBatcher
from spaninfer_serving.settings import Settings
from spaninfer_serving.wire.admin import PauseMode, PauseState, Sleeping, SleepMode

if TYPE_CHECKING:
    from spaninfer_engine import Engine

LOGGERS = ("spaninfer_serving", "spaninfer_engine")


@runtime_checkable
class EngineClient(Protocol):
    """Steps and operations of one engine, for the tasks of one event loop.

    `front` is what needs no steps, and is in this process in any case.
    """

    @property
    def front(self) -> Frontend:
        """The tokenizer and templates of the model."""
        ...

    @property
    def gate(self) -> Gate:
        """The gate in front of the engine, or a picture of it."""
        ...

    async def start(self, asked: StartRequest) -> list[OutputStream]:
        """Start the prompts of a request, all or none; raises Problem and what the engine does."""
        ...

    async def admit(self, account: str, num_tokens: int) -> None:
        """Count a request that does not generate; Problem 429 where its key has to wait."""
        ...

    async def rows(self, client: Client, texts: Sequence[Text]) -> tuple[Rows, float]:
        """Return the rows of texts, and when their first step began, as TextBatcher.rows does."""
        ...

    async def keep_response(self, account: str, response_id: str, stored: StoredResponse) -> None:
        """Keep a response for its account."""
        ...

    async def kept_response(
        self, account: str, response_id: str, param: str | None = None
    ) -> StoredResponse:
        """Return a response that is kept; Problem 404, about a parameter, where there is none."""
        ...

    async def forget_response(self, account: str, response_id: str) -> None:
        """Forget a response; Problem 404 where there is none."""
        ...

    async def stats(self) -> EngineStats:
        """Return what the engine has done and is doing."""
        ...

    async def cache_map(self) -> CacheMap:
        """Return what each span of the KV cache holds."""
        ...

    async def reset_prefix_cache(self) -> None:
        """Share nothing computed so far with later requests."""
        ...

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> PauseState:
        """Hold new requests back, as EngineControl.pause does."""
        ...

    async def resume(self) -> PauseState:
        """Let requests in again."""
        ...

    async def pause_state(self) -> PauseState:
        """Return whether requests are held back."""
        ...

    async def abort(self, ids: Sequence[str] | None) -> list[str]:
        """End requests by their ids, None: all; return those that there were."""
        ...

    async def drain(self) -> None:
        """Refuse new requests and wait until none runs any more."""
        ...

    async def sleep(self, mode: SleepMode) -> Sleeping:
        """Give weights and KV cache back, as WeightsControl.sleep does."""
        ...

    async def wake_up(self) -> Sleeping:
        """Read the weights again, as WeightsControl.wake_up does."""
        ...

    async def sleeping(self) -> Sleeping:
        """Return whether the engine sleeps."""
        ...

    async def update_weights(
        self, model_path: str, *, abort: bool, version: str | None
    ) -> tuple[str, int]:
        """Exchange the weights, as WeightsControl.update does."""
        ...

    async def start_profile(self) -> None:
        """Begin to measure steps, as Profiling.start does."""
        ...

    async def stop_profile(self) -> str:
        """End that; return the name of the file that says what was measured."""
        ...

    async def num_in_flight(self) -> int:
        """Return how many requests generate."""
        ...

    async def log_from(self, level: str) -> None:
        """Log from a level on, in all processes."""
        ...


class LocalClient:
    """The engine of this process."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine, self._streams = engine, AsyncEngine(engine)
        self.control = EngineControl.new(engine, settings)
        self._batcher = TextBatcher(engine)

    @property
    def front(self) -> Frontend:
        """The engine itself."""
        return self.engine

    @property
    def gate(self) -> Gate:
        """The gate in front of the engine."""
        return self.control.gate

    async def start(self, asked: StartRequest) -> list[OutputStream]:
        """Start the prompts of a request."""

        def begin(number: int) -> OutputStream:
            return self._streams.start(
                asked.prompts[number], asked.sampling, asked.placement, at_end=asked.at_end
            )

        return await self.control.start(
            asked,
            lambda: self._streams.compile_grammar(asked.sampling, asked.placement.tenant),
            begin,
        )

    async def admit(self, account: str, num_tokens: int) -> None:
        """Count a request that does not generate."""
        self.control.in_flight.admit(account, num_tokens)

    async def rows(self, client: Client, texts: Sequence[Text]) -> tuple[Rows, float]:
        """Return the rows of texts."""
        return await self._batcher.rows(client, texts)

    async def keep_response(self, account: str, response_id: str, stored: StoredResponse) -> None:
        """Keep a response."""
        self.control.stored.put(account, response_id, stored)

    async def kept_response(
        self, account: str, response_id: str, param: str | None = None
    ) -> StoredResponse:
        """Return a response that is kept."""
        return self.control.stored.get(account, response_id, param)

    async def forget_response(self, account: str, response_id: str) -> None:
        """Forget a response."""
        self.control.stored.delete(account, response_id)

    async def stats(self) -> EngineStats:
        """Return the engine's numbers."""
        return self.engine.stats()

    async def cache_map(self) -> CacheMap:
        """Return the engine's picture."""
        return self.engine.cache_map()

    async def reset_prefix_cache(self) -> None:
        """Share nothing computed so far with later requests."""
        self.engine.reset_prefix_cache()

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> PauseState:
        """Hold new requests back."""
        return await self.control.pause(mode, clear_cache=clear_cache)

    async def resume(self) -> PauseState:
        """Let requests in again."""
        return self.control.resume()

    async def pause_state(self) -> PauseState:
        """Return whether requests are held back."""
        return self.control.state

    async def abort(self, ids: Sequence[str] | None) -> list[str]:
        """End requests."""
        return self.control.abort(ids)

    async def drain(self) -> None:
        """Refuse new requests and wait until none runs any more."""
        await self.control.drain()

    async def sleep(self, mode: SleepMode) -> Sleeping:
        """Give weights and KV cache back."""
        return await self.control.weights.sleep(mode)

    async def wake_up(self) -> Sleeping:
        """Read the weights again."""
        return await self.control.weights.wake_up()

    async def sleeping(self) -> Sleeping:
        """Return whether the engine sleeps."""
        return self.control.weights.sleeping

    async def update_weights(
        self, model_path: str, *, abort: bool, version: str | None
    ) -> tuple[str, int]:
        """Exchange the weights."""
        return await self.control.weights.update(model_path, abort=abort, version=version)

    async def start_profile(self) -> None:
        """Begin to measure steps."""
        await self.control.profiling.start()

    async def stop_profile(self) -> str:
        """End that; return the name of the file."""
        return await self.control.profiling.stop()

    async def num_in_flight(self) -> int:
        """Return how many requests generate."""
        return len(self.control.in_flight)

    async def log_from(self, level: str) -> None:
        """Log from a level on."""
        set_log_level(level)


def set_log_level(level: str) -> None:
    """Set the log level of our packages."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(level.upper())
