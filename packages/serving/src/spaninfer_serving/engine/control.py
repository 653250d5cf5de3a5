"""Admission to an engine, and operations on it: in its process, once for all API servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from spaninfer_engine import Placement, SamplingParams

from spaninfer_serving.engine.gate import Gate
from spaninfer_serving.engine.in_flight import InFlight, Running
from spaninfer_serving.engine.response_store import STORED_BYTES, ResponseStore
from spaninfer_serving.engine.weights import WeightsControl
from spaninfer_serving.error_mapping import asleep
from spaninfer_serving.observability.profiling import Profiling
from spaninfer_serving.settings import Settings, account_of
from spaninfer_serving.wire.admin import PauseMode, PauseState

if TYPE_CHECKING:
    from spaninfer_engine import Engine

STARTED_TOGETHER = 64  # prompts; a start takes 0.1 ms, in which no stream is sent anything

R = TypeVar("R", bound=Running)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """The prompts of one HTTP request, as token ids, and how to sample.

    `at_end`: outputs are read when all is there. The request can be ended by its id.
    """

    request_id: str
    prompts: Sequence[Sequence[int]]
    sampling: SamplingParams
    placement: Placement
    at_end: bool

    @property
    def num_tokens(self) -> int:
        """The tokens of all prompts."""
        return sum(map(len, self.prompts))


@dataclass(slots=True)
class EngineControl:
    """An engine with its gate, the requests that it answers and the responses that are kept; for
    the tasks of one event loop.
    """

    engine: Engine
    in_flight: InFlight
    stored: ResponseStore
    profiling: Profiling
    gate: Gate
    weights: WeightsControl

    @classmethod
    def new(cls, engine: Engine, settings: Settings) -> EngineControl:
        """Return the control of an engine that is not in use yet."""
        gate = Gate()
        in_flight = InFlight({account_of(key): key.limits for key in settings.user_keys})
        return cls(
            engine,
            in_flight,
            ResponseStore(settings.max_stored_responses, STORED_BYTES),
            Profiling(engine, settings.profile_dir),
            gate,
            WeightsControl(engine, gate, in_flight, settings),
        )

    async def start(
        self,
        asked: StartRequest,
        compile_grammar: Callable[[], Awaitable[object]],
        begin: Callable[[int], R],
    ) -> list[R]:
        """Admit a request and begin its prompts, each by `begin` of its number: all or none.

        Raises Problem for what limits and the gate refuse, and what the engine raises.
        """
        self._admit(asked)
        grammar = await compile_grammar()  # kept cached by the reference until all have begun
        self.gate.check()  # again: it may have been closed meanwhile
        running: list[R] = []
        for number in range(0, len(asked.prompts), STARTED_TOGETHER):
            if number:
                await _pause(running)
            self._begin(range(number, len(asked.prompts))[:STARTED_TOGETHER], begin, running)
        del grammar
        self.in_flight.add(asked.request_id, asked.placement.client, running)
        return running

    def start_now(self, asked: StartRequest, begin: Callable[[int], R]) -> None:
        """Do the same for a request of few prompts and without a form, which waits for nothing."""
        self._admit(asked)
        running: list[R] = []
        self._begin(range(len(asked.prompts)), begin, running)
        self.in_flight.add(asked.request_id, asked.placement.client, running)

    def _admit(self, asked: StartRequest) -> None:
        self.gate.check()
        self.in_flight.admit(asked.placement.client, asked.num_tokens)

    def _begin(self, numbers: range, begin: Callable[[int], R], running: list[R]) -> None:
        """Begin prompts; where one is refused, end all that are running."""
        try:
            running += map(begin, numbers)
        except BaseException:  # those that were begun will not be read
            _close(running)
            raise

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> PauseState:
        """Hold new requests back; running ones are aborted, waited for, or frozen.

        Returns when none runs any more, or with `keep`, when no more steps are planned.
        """
        if mode == "keep" and self.engine.is_asleep:
            raise asleep()
        self.gate.shut()
        if mode == "keep":
            self.engine.freeze()
            self.gate.note_frozen(is_frozen=True)
        if mode == "abort":
            self.in_flight.abort_all()
        if mode != "keep":
            await self.in_flight.wait_idle()
        if clear_cache:
            self.engine.reset_prefix_cache()
        return self.state

    def resume(self) -> PauseState:
        """Let requests in again, and go on with those that were kept; ends a drain as well."""
        self._thaw()
        self.gate.open()
        return self.state

    @property
    def state(self) -> PauseState:
        """Return whether requests are held back."""
        gate = self.gate.state
        return PauseState(is_paused=gate.is_paused, is_frozen=gate.is_frozen)

    def abort(self, ids: Sequence[str] | None) -> list[str]:
        """End requests by their ids, None: all; return those that there were.

        Their answers keep what they have, with the finish reason `abort`.
        """
        if ids is None:
            return self.in_flight.abort_all()
        return [each for each in ids if self.in_flight.abort(each)]

    async def drain(self) -> None:
        """Refuse new requests and wait until none runs any more; `resume` ends it."""
        self.gate.close()
        self._thaw()
        await self.in_flight.wait_idle()

    def _thaw(self) -> None:
        self.engine.thaw()
        self.gate.note_frozen(is_frozen=False)


async def _pause(running: Sequence[Running]) -> None:
    """Let other tasks have a turn; where this one is cancelled meanwhile, end all."""
    try:
        await asyncio.sleep(0)
    except BaseException:
        _close(running)
        raise


def _close(running: Sequence[Running]) -> None:
    for each in running:
        each.close()
