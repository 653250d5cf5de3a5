"""The engine behind asyncio: the same loop, its queues as async iterators."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, Protocol, Self
from weakref import WeakKeyDictionary, ref

from spaninfer_engine.engine import Engine
from spaninfer_engine.handle import RequestHandle, ResultQueue
from spaninfer_engine.keywords import with_keywords
from spaninfer_engine.prompts import Prompt
from spaninfer_engine.request import Grammar, Output, Placement, SamplingParams

# Tokens and log-probabilities of one request that wait to be read: 8 MB of them. A task that does
# not come to read has a client that does not, and would keep the whole of its answer in memory.
MAX_UNREAD = 1 << 16


class Owner(Protocol):
    """An engine as its streams know it, of this process or another."""

    def stop(self, handle: RequestHandle) -> None:
        """End a request before the next step; what it has produced can still be read."""
        ...

    def release(self, handle: RequestHandle) -> None:
        """Give up a request and what it has produced; stops it where it still runs."""
        ...


class Wakeups(Protocol):
    """A way to wake the tasks of one event loop."""

    def waker(self, alarm: Alarm) -> Callable[[], None]:
        """Return what rings an alarm."""
        ...


class OutputStream:
    """The outputs of one request, as an async iterator of one task; raises Unread in one that reads
    too slowly.

    Closing it, or losing the last reference to it, stops the request: a client that leaves
    leaves none behind.
    """

    def __init__(
        self,
        engine: Owner,
        handle: RequestHandle,
        queue: ResultQueue,
        wakeups: Wakeups,
        *,
        at_end: bool,
    ) -> None:
        self._engine, self._handle, self._queue = engine, handle, queue
        self._alarm = alarm = Alarm()
        if at_end:
            queue.read_at_end()
        else:
            queue.limit(MAX_UNREAD, _stopper(engine, handle))
        queue.listen(wakeups.waker(alarm))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output:
        queue, alarm = self._queue, self._alarm
        while not queue.is_due:
            alarm.is_rung = False
            if not queue.is_due:  # what comes from here on rings
                await alarm.set()
        output = queue.get_nowait()
        if output is None:
            raise StopAsyncIteration
        return output

    @property
    def handle(self) -> RequestHandle:
        """The request."""
        return self._handle

    def stop(self) -> None:
        """End the request before the next step; what it has produced can still be read."""
        self._engine.stop(self._handle)

    def close(self) -> None:
        """Stop the request if it still runs, and forget it; idempotent."""
        self._engine.release(self._handle)

    def __del__(self) -> None:
        self.close()


class AsyncEngine:
    """Answers requests of asyncio tasks; the engine is the caller's, and may serve others as well.

    Closing it closes the engine.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._wakeups = WeakKeyDictionary[asyncio.AbstractEventLoop, _Wakeups]()

    def start(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams | None = None,
        placement: Placement | None = None,
        *,
        at_end: bool = False,
        **fields: Any,
    ) -> OutputStream:
        """Start a request now, and return what it produces; to be called in a task.

        `at_end`: all of it is read when the request has finished, or a choice has failed, which
        saves waking up for each token. Raises as Engine.start_request does. `compile_grammar` comes
        first where the answer has a form: else other tasks wait for that.
        """
        handle, queue = self.engine.start_request(prompt_ids, sampling, placement, **fields)
        loop = asyncio.get_running_loop()
        wakeups = self._wakeups.get(loop)
        if wakeups is None:
            wakeups = self._wakeups[loop] = _Wakeups(loop)
        return OutputStream(self.engine, handle, queue, wakeups, at_end=at_end)

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        placement: Placement | None = None,
        **fields: Any,
    ) -> AsyncGenerator[Output, None]:
        """Yield what a request produces, as it comes.

        Raises as Engine.start_request does, before the first element. When the iterator is closed
        or its task cancelled before the end, the request is stopped at once.
        """
        if isinstance(prompt, str):  # long texts take milliseconds, which other tasks can use
            prompt = await asyncio.to_thread(self.engine.tokenizer.encode, prompt)
        given = with_keywords(sampling or self.engine.default_sampling, fields, "generate")
        tenant = (placement or Placement()).tenant
        grammar = await self.compile_grammar(given, tenant)
        stream = self.start(prompt, given, placement)
        del grammar  # the request has it
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    async def compile_grammar(self, sampling: SamplingParams, tenant: str = "") -> Grammar | None:
        """Compile the form of a request's answer, if it has one, as Engine.compile_grammar does.

        As long as the caller keeps the result, `start` does not wait for it.
        """
        if sampling.structured is None:
            return None
        return await asyncio.to_thread(self.engine.compile_grammar, sampling.structured, tenant)

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: SamplingParams | None = None,
        placement: Placement | None = None,
        **fields: Any,
    ) -> AsyncGenerator[Output, None]:
        """Yield the answer to a conversation, as it comes; raises as `encode_chat` and `generate`.

        `messages` are those of Engine.encode_chat.
        """
        tenant = (placement or Placement()).tenant
        prompt = await asyncio.to_thread(self.engine.encode_chat, messages, tenant=tenant)
        async with aclosing(self.generate(prompt, sampling, placement, **fields)) as outputs:
            async for output in outputs:
                yield output

    async def close(self, drain_s: float = 0.0) -> None:
        """Close the engine as Engine.close does, without holding up other tasks."""
        await asyncio.to_thread(self.engine.close, drain_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _stopper(engine: Owner, handle: RequestHandle) -> Callable[[], None]:
    """Return what stops a request, but does not keep its engine from being dropped."""
    known = ref(engine)

    def stop() -> None:
        engine = known()
        if engine is not None:
            engine.stop(handle)

    return stop


class Alarm:
    """Wakes the one task that waits for it; an Event has three more calls and a queue of tasks."""

    __slots__ = ("_waiter", "is_rung")

    def __init__(self) -> None:
        self.is_rung = False  # and its reader has not looked since
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> asyncio.Future[None]:
        """Return what is done at the next `wake`."""
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def wake(self) -> None:
        """Wake the task; called in its loop."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Wakeups:
    """Alarms of one loop that other threads ring: all that are due in one call of the loop.

    Calling a loop from another thread takes it a system call to write and one to read, 10 us in
    all; a step of an engine brings an output for each of its requests.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # which keeps the streams, which keep this
        self._due: deque[Alarm] = deque()
        self._is_called = False

    def waker(self, alarm: Alarm) -> Callable[[], None]:
        """Return what rings the alarm from any thread."""

        def ring() -> None:
            # Its reader looks at everything once it has woken: one more call changes nothing.
            if alarm.is_rung:
                return
            alarm.is_rung = True
            self._due.append(alarm)
            loop = self._loop()
            if loop is not None and not self._is_called:
                self._is_called = True
                with suppress(RuntimeError):  # the loop is closed, and its readers with it
                    loop.call_soon_threadsafe(self._wake_due)

        return ring

    def _wake_due(self) -> None:
        self._is_called = False  # first: what is appended from here on calls again
        while self._due:
            self._due.popleft().wake()
