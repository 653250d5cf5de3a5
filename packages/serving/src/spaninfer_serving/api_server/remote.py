"""The engine of another process, as a service of an API server sees it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any

from spaninfer_engine import (
    CacheMap,
    EngineClosed,
    EngineStats,
    FinishReason,
    OutputStream,
    RequestHandle,
)
from spaninfer_engine.serving import Frontend, Rows, Text, media_of, token_ids

from spaninfer_serving.admission.fair_queue import Client
from spaninfer_serving.api_server import messages
from spaninfer_serving.api_server.handover import Handover
from spaninfer_serving.api_server.link import Link
from spaninfer_serving.api_server.loop_wakeups import LoopWakeups
from spaninfer_serving.api_server.records import (
    error_of,
    plain_media,
    plain_sampling,
    plain_texts,
    typed_array,
    typed_map,
    typed_stats,
)
from spaninfer_serving.api_server.remote_choices import RemoteChoices
from spaninfer_serving.engine.client import set_log_level
from spaninfer_serving.engine.control import StartRequest
from spaninfer_serving.engine.gate import Gate
from spaninfer_serving.engine.response_store import StoredResponse
from spaninfer_serving.wire.admin import PauseMode, PauseState, Sleeping, SleepMode

GONE = "the engine's process has ended"


class RemoteClient:
    """Sends to the engine's process what a service asks, and makes text of what comes back.

    To be used in one event loop, in which nothing waits for another thread.
    """

    def __init__(self, front: Frontend, end: socket.socket, drain: Callable[[], None]) -> None:
        """Take the socket; `drain` is called when the engine's process says so, or is gone."""
        self.front, self.gate, self._drain = front, Gate(), drain
        self.link = Link(end, self._take, self._end)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._num_calls = 0
        self._choices = RemoteChoices(front.tokenizer, self._stop)
        self._recalling = asyncio.Lock()  # each may be large, and all that is unread is bounded
        self._wakeups = LoopWakeups()
        self._handover = Handover(self.link.flush)

    # ---- what a service asks ---------------------------------------------------------------------

    async def start(self, asked: StartRequest) -> list[OutputStream]:
        """Start the prompts of a request."""
        self._check_link()
        prompts = [(token_ids(each), media_of(each)) for each in asked.prompts]
        handles = [self._choices.open(ids, media, asked) for ids, media in prompts]
        streams = [
            OutputStream(self, handle, handle.queue, self._wakeups, at_end=asked.at_end)
            for handle in handles
        ]
        # A refusal of what is read at its end is soon enough then.
        waits = not asked.at_end or asked.sampling.structured is not None
        call, answer = self._call() if waits else (None, None)
        try:
            self._send_start(call, asked, handles)
            if answer is not None:
                await answer
        except BaseException:
            for handle in handles:
                self.release(handle)
                self._choices.forget(handle)
            raise
        return streams

    def _send_start(
        self, call: int | None, asked: StartRequest, handles: Sequence[RequestHandle]
    ) -> None:
        placement = asked.placement
        self.link.send(
            messages.Start(
                call,
                asked.request_id,
                [handle.request.prompt_ids.tobytes() for handle in handles],
                [handle.id for handle in handles],
                [plain_media(handle.request.media) for handle in handles],
                plain_sampling(asked.sampling),
                (
                    placement.priority,
                    placement.deadline_s,
                    placement.tenant,
                    placement.client,
                    placement.adapter,
                ),
                asked.at_end,
            ),
            hold=True,
        )
        self._handover.note()

    def stop(self, handle: RequestHandle) -> None:
        """End a request; what it has produced can still be read."""
        self._stop(self._choices.open_of(handle), FinishReason.STOPPED)

    def release(self, handle: RequestHandle) -> None:
        """Give up a request and what it has produced; stops it where it still runs."""
        handle.queue.discard()
        if not handle.queue.is_finished:
            self.stop(handle)

    def _stop(self, numbers: list[int], reason: FinishReason) -> None:
        if numbers:
            self.link.send(messages.Stop(numbers, reason.value))

    async def admit(self, account: str, num_tokens: int) -> None:
        """Count a request that does not generate."""
        await self._operate("admit", account, num_tokens)

    async def rows(self, client: Client, texts: Sequence[Text]) -> tuple[Rows, float]:
        """Return the rows of texts, which the engine's process computes with those of others."""
        found, begun_s = await self._operate("rows", tuple(client), plain_texts(texts))
        return typed_array(found), begun_s

    async def keep_response(self, account: str, response_id: str, stored: StoredResponse) -> None:
        """Keep a response, for all API servers."""
        json, conversation = stored.json, list(stored.conversation)
        await self._operate("keep_response", account, response_id, json, conversation)

    async def kept_response(
        self, account: str, response_id: str, param: str | None = None
    ) -> StoredResponse:
        """Return a response that is kept."""
        async with self._recalling:
            found = await self._operate("kept_response", account, response_id, param)
        json, conversation = found
        return StoredResponse(json, tuple(conversation))

    async def forget_response(self, account: str, response_id: str) -> None:
        """Forget a response."""
        await self._operate("forget_response", account, response_id)

    async def stats(self) -> EngineStats:
        """Return the engine's numbers."""
        return typed_stats(await self._operate("stats"))

    async def cache_map(self) -> CacheMap:
        """Return the engine's picture."""
        return typed_map(await self._operate("cache_map"))

    async def reset_prefix_cache(self) -> None:
        """Share nothing computed so far with later requests."""
        await self._operate("reset_prefix_cache")

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> PauseState:
        """Hold new requests back."""
        return PauseState(**await self._operate("pause", mode, clear_cache))

    async def resume(self) -> PauseState:
        """Let requests in again."""
        return PauseState(**await self._operate("resume"))

    async def pause_state(self) -> PauseState:
        """Return whether requests are held back."""
        return PauseState(**await self._operate("pause_state"))

    async def abort(self, ids: Sequence[str] | None) -> list[str]:
        """End requests, whichever API server has them."""
        aborted: list[str] = await self._operate("abort", None if ids is None else list(ids))
        return aborted

    async def drain(self) -> None:
        """Refuse new requests and wait until none runs any more."""
        await self._operate("drain")

    async def sleep(self, mode: SleepMode) -> Sleeping:
        """Give weights and KV cache back."""
        return Sleeping(**await self._operate("sleep", mode))

    async def wake_up(self) -> Sleeping:
        """Read the weights again."""
        return Sleeping(**await self._operate("wake_up"))

    async def sleeping(self) -> Sleeping:
        """Return whether the engine sleeps."""
        return Sleeping(**await self._operate("sleeping"))

    async def update_weights(
        self, model_path: str, *, abort: bool, version: str | None
    ) -> tuple[str, int]:
        """Exchange the weights."""
        version, num_running = await self._operate("update_weights", model_path, abort, version)
        return str(version), int(num_running)

    async def start_profile(self) -> None:
        """Begin to measure the engine's steps."""
        await self._operate("start_profile")

    async def stop_profile(self) -> str:
        """End that; return the name of the file."""
        return str(await self._operate("stop_profile"))

    async def num_in_flight(self) -> int:
        """Return how many requests generate, of all API servers."""
        return int(await self._operate("num_in_flight"))

    async def log_from(self, level: str) -> None:
        """Log from a level on, in all processes."""
        await self._operate("log_from", level)

    async def _operate(self, operation: str, *arguments: Any) -> Any:
        call, answer = self._call()
        self.link.send(messages.Call(call, operation, list(arguments)))
        try:
            return await answer
        except asyncio.CancelledError:  # the caller has left
            self._calls.pop(call, None)
            self.link.send(messages.Cancel(call))
            raise

    def _check_link(self) -> None:
        if self.link.is_closed:
            raise EngineClosed(GONE)

    def _call(self) -> tuple[int, asyncio.Future[Any]]:
        self._check_link()
        self._num_calls += 1
        answer = self._calls[self._num_calls] = asyncio.get_running_loop().create_future()
        return self._num_calls, answer

    # ---- what comes back -------------------------------------------------------------------------

    def _take(self, frames: list[bytes]) -> None:
        for frame in frames:
            self._take_one(frame)

    def _take_one(self, frame: bytes) -> None:
        match messages.from_engine.decode(frame):
            case messages.Tokens() as news:
                self._choices.take(news)
            case messages.Answer(call, value, fault):
                answer = self._calls.pop(call, None)
                if answer is None or answer.done():  # the caller has left meanwhile
                    return
                if fault is None:
                    answer.set_result(value)
                else:
                    answer.set_exception(error_of(fault))
            case messages.Refused(keys, fault):
                for key in keys:
                    self._choices.refuse(key, error_of(fault))
            case messages.Gate(state):
                self.gate.show(state)
            case messages.LogFrom(level):
                set_log_level(level)
            case messages.Drain():
                self._drain()

    def _end(self) -> None:
        """Answer everybody with an error: the engine's process is gone."""
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(EngineClosed(GONE))
        self._calls.clear()
        self._choices.fail_all(lambda: EngineClosed(GONE))
        self._drain()
