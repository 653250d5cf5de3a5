"""The engine behind asyncio: the same loop, its queues as async iterators."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self
from weakref import WeakKeyDictionary, ref

from spaninfer_engine.output.handle import RequestHandle, ResultQueue
from spaninfer_engine.request.keywords import with_keywords
from spaninfer_engine.request.prompts import Prompt
from spaninfer_engine.request.request import Grammar, Output, Placement, SamplingParams

if TYPE_CHECKING:  # streams are also those of processes that have no engine
    from spaninfer_engine.engine import Engine

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
    """The outputs of one request, as an async iterator for one task.

    Closing it, or dropping the last reference to it, stops the request. Raises Unread in a task
    that reads too slowly.
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
        """Stop the request before the next step; its outputs so far can still be read."""
        self._engine.stop(self._handle)

    def close(self) -> None:
        """Stop the request if it is running, and discard its outputs; idempotent."""
        self._engine.release(self._handle)

    def __del__(self) -> None:
        self.close()


class AsyncEngine:
    """An asyncio front of an engine, which threads may use at the same time.

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
        """Start a request and return the stream of its outputs; to be called in a task.

        With `at_end`, the task wakes up only once the request has finished or a choice has failed.
        Raises as Engine.start_request. For structured output, await `compile_grammar` first, so
        that compiling does not block the event loop.
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
        """Yield the outputs of a request as they are produced.

        Raises as Engine.start_request, before the first output. Closing the iterator or cancelling
        its task stops the request.
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
        """Compile a request's structured output, if it has any, as Engine.compile_grammar does.

        While the caller keeps the result, `start` need not compile it.
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
        """Yield the answer to a conversation as it is produced.

        `messages` are those of Engine.encode_chat. Raises as `encode_chat` and `generate`.
        """
        tenant = (placement or Placement()).tenant
        prompt = await asyncio.to_thread(self.engine.encode_chat, messages, tenant=tenant)
        async with aclosing(self.generate(prompt, sampling, placement, **fields)) as outputs:
            async for output in outputs:
                yield output

    async def close(self, drain_s: float = 0.0) -> None:
        """Close the engine as Engine.close does, without blocking the event loop."""
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
