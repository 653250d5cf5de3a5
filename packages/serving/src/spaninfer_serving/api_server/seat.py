"""The engine's side of one API server: its requests, its calls, its link."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from spaninfer_engine import FinishReason, Placement
from spaninfer_engine.serving import MediaPrompt

from spaninfer_serving.api_server.link import Link
from spaninfer_serving.api_server.messages import (
    Answer,
    Call,
    Cancel,
    Ready,
    Refused,
    Start,
    Stop,
    from_api_server,
)
from spaninfer_serving.api_server.records import fault_of, typed_media, typed_sampling
from spaninfer_serving.api_server.relays import RequestRelay, RunningRelay, ServerBatch
from spaninfer_serving.engine.control import STARTED_TOGETHER, EngineControl, StartRequest

Operations = Mapping[str, Callable[..., Awaitable[Any]]]
"""What API servers may call, by name; results are plain values."""


# Of what an API server does not read so much is kept; then it hangs, and the link ends.
MAX_UNSENT = 1 << 26


class Seat:
    """One API server as the engine's process knows it; for the tasks of its event loop.

    When the link ends, all of its requests are stopped, and `ended` is called.
    """

    def __init__(
        self,
        control: EngineControl,
        operations: Operations,
        end: socket.socket,
        ended: Callable[[], None],
    ) -> None:
        self.control, self._operations, self._on_end = control, operations, ended
        self.link = Link(end, self._take, self._end, MAX_UNSENT)
        self.ready = asyncio.Event()
        self._batch = ServerBatch(self.link)
        self._running: dict[int, tuple[RunningRelay, int]] = {}  # choices by their numbers
        self._starting: dict[int, FinishReason | None] = {}  # choices that may be stopped already
        self._calls: dict[int, asyncio.Task[None]] = {}  # that are being answered
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_begun = False  # requests that have not been handed over

    def _take(self, frames: list[bytes]) -> None:
        for frame in frames:
            self._take_one(frame)
        self._hand_over()

    def _hand_over(self) -> None:
        """Have requests begin that came together, and their answers sent."""
        if self._has_begun:
            self._has_begun = False
            self.control.engine.hand_over()
        self.link.flush()

    def _take_one(self, frame: bytes) -> None:
        match from_api_server.decode(frame):
            case Start() as start:
                self._take_start(start)
            case Stop(numbers, reason):
                for number in numbers:
                    self._stop(number, FinishReason(reason))
            case Call(call, operation, arguments):
                task = self._spawn(self._answer(call, operation, arguments))
                self._calls[call] = task
                task.add_done_callback(lambda _: self._calls.pop(call))
            case Cancel(call):
                if (answering := self._calls.get(call)) is not None:
                    answering.cancel()
            case Ready():
                self.ready.set()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, call: int, operation: str, arguments: list[Any]) -> None:
        try:
            self.link.send(Answer(call, await self._operations[operation](*arguments)))
        except Exception as error:
            self.link.send(Answer(call, fault=fault_of(error)))

    def _take_start(self, start: Start) -> None:
        """Start a request; in place where nothing has to be waited for."""
        try:
            beginning = _Beginning(self, start)
            if beginning.has_to_wait:
                self._spawn(self._start(beginning))
                return
            self.control.start_now(beginning.asked, beginning.begin)
        except Exception as error:
            self._refuse(start, error)
        else:
            self._confirm(start)

    def _confirm(self, start: Start) -> None:
        if start.call is not None:
            self.link.send(Answer(start.call), hold=True)

    def _refuse(self, start: Start, error: Exception) -> None:
        if start.call is None:
            self.link.send(Refused(start.keys, fault_of(error)), hold=True)
        else:
            self.link.send(Answer(start.call, fault=fault_of(error)), hold=True)

    async def _start(self, beginning: _Beginning) -> None:
        gate, numbers = self.control.gate, beginning.numbers
        self._starting |= dict.fromkeys(numbers)
        try:
            while gate.is_shut:
                await gate.opened()
            await self.control.start(beginning.asked, beginning.compile_grammar, beginning.begin)
        except Exception as error:
            self._refuse(beginning.start, error)
        else:
            self._confirm(beginning.start)
        finally:
            for number in numbers:
                del self._starting[number]
        self._hand_over()

    def begin(self, start: Start, asked: StartRequest, at: int) -> RunningRelay:
        """Begin one prompt of a request; raises what the engine does."""
        engine, sampling = self.control.engine, asked.sampling
        numbers = range(start.keys[at], start.keys[at] + sampling.n)
        forget = partial(self._forget, numbers)
        relay = RequestRelay(
            self._batch, numbers.start, sampling, at_end=start.at_end, forget=forget
        )
        ids, media = np.frombuffer(start.prompts[at], np.int64), typed_media(start.media[at])
        prompt = ids if media is None else MediaPrompt(ids.tolist(), media)
        request = engine.start_relayed(prompt, sampling, asked.placement, relay)
        self._has_begun = True
        running = RunningRelay(engine, request, forget)
        for index, number in enumerate(numbers):
            self._running[number] = running, index
            if (reason := self._starting.get(number)) is not None:
                self._stop(number, reason)
        if relay.is_over:  # before it was in the table
            forget()
        return running

    def _stop(self, number: int, reason: FinishReason) -> None:
        """End a choice, or as soon as the engine has it; one that has ended stays as it is."""
        if (found := self._running.get(number)) is not None:
            running, index = found
            running.stop_choice(index, reason)
        elif number in self._starting:
            self._starting[number] = reason

    def _forget(self, numbers: range) -> None:
        for number in numbers:
            self._running.pop(number, None)

    def _end(self) -> None:
        """Stop everything that the API server had begun: it is gone."""
        for task in list(self._tasks):
            task.cancel()
        for running, index in list(self._running.values()):
            running.stop_choice(index, FinishReason.STOPPED)
        self._running.clear()
        self._on_end()


class _Beginning:
    """A request on its way into the engine."""

    def __init__(self, seat: Seat, start: Start) -> None:
        self._seat, self.start = seat, start
        priority, deadline_s, tenant, client, adapter = start.placement
        self.asked = StartRequest(
            request_id=start.request_id,
            prompts=[memoryview(ids).cast("q") for ids in start.prompts],
            sampling=typed_sampling(bytes(start.sampling)),
            placement=Placement(
                priority=priority,
                deadline_s=deadline_s,
                tenant=tenant,
                client=client,
                adapter=adapter,
            ),
            at_end=start.at_end,
        )

    @property
    def has_to_wait(self) -> bool:
        """Has its form to be compiled, the gate to be opened, or others to have turns?"""
        asked = self.asked
        has_many = len(asked.prompts) > STARTED_TOGETHER
        return has_many or asked.sampling.structured is not None or self._seat.control.gate.is_shut

    @property
    def numbers(self) -> list[int]:
        """The numbers of all of its choices."""
        choices = range(self.asked.sampling.n)
        return [key + index for key in self.start.keys for index in choices]

    async def compile_grammar(self) -> object:
        """Compile the form of its answers, if they have one."""
        form, tenant = self.asked.sampling.structured, self.asked.placement.tenant
        if form is None:
            return None
        return await asyncio.to_thread(self._seat.control.engine.compile_grammar, form, tenant)

    def begin(self, at: int) -> RunningRelay:
        """Begin one of its prompts."""
        return self._seat.begin(self.start, self.asked, at)
