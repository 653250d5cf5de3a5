"""Both ends of a link in one event loop, around a real engine."""

import asyncio
import gc
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import sleep
from typing import Any
from weakref import ref

import pytest
from seeing_folder import film, png, save_seeing
from spaninfer_engine import (
    Engine,
    EngineClosed,
    FinishReason,
    InvalidPrompt,
    OutputStream,
    Placement,
    SamplingParams,
)
from spaninfer_engine.output.handle import merge
from spaninfer_serving import Settings
from spaninfer_serving.answers.responses import checked
from spaninfer_serving.api_server.link import Link
from spaninfer_serving.api_server.remote import RemoteClient
from spaninfer_serving.api_server.seat import Seat
from spaninfer_serving.engine.control import EngineControl, StartRequest

GREEDY = SamplingParams(temperature=0, ignore_eos=True, max_tokens=40)
LONG = SamplingParams(temperature=0, ignore_eos=True)


class Ends:
    """A seat and the client across from it; what became of them."""

    def __init__(self, engine: Engine) -> None:
        ours, theirs = socket.socketpair()
        self.lost, self.drains = asyncio.Event(), 0
        self.control = EngineControl.new(engine, Settings())
        self.seat = Seat(self.control, {}, ours, self.lost.set)
        self.client = RemoteClient(engine, theirs, self._drain)
        self.seat.link.open()
        self.client.link.open()

    def _drain(self) -> None:
        self.drains += 1

    async def start(self, *prompts: list[int], **fields: Any) -> list[OutputStream]:
        given = {"sampling": GREEDY, "at_end": False} | fields
        asked = StartRequest(request_id="r", prompts=prompts, placement=Placement(), **given)
        return await self.client.start(asked)


@asynccontextmanager
async def _ends(engine: Engine) -> AsyncIterator[Ends]:
    ends = Ends(engine)
    try:
        yield ends
    finally:
        ends.seat.link.close()
        ends.client.link.close()


def _run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def _read(*streams: OutputStream) -> None:
    """Read streams to their end; raises the error of one."""
    for stream in streams:
        async for output in stream:
            checked(output)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize(
    "fields",
    [{}, {"stop": ["e", "\n"]}, {"logprobs": 2, "prompt_logprobs": 1}, {"n": 2, "seed": 5}],
)
def test_what_a_client_reads_is_what_the_engine_says(
    long_engine: Engine, at_end: bool, fields: dict[str, Any]
) -> None:
    sampling = SamplingParams(ignore_eos=True, max_tokens=80, **({"seed": 3} | fields))
    long_engine.reset_prefix_cache()
    expected = long_engine.generate([[65, 66, 67]], sampling)[0]

    async def work() -> None:
        async with _ends(long_engine) as ends:
            (stream,) = await ends.start([65, 66, 67], sampling=sampling, at_end=at_end)
            outputs = [output async for output in stream]
            whole = merge([each for each in outputs if each.index == 0])
            for name in ("text", "token_ids", "finish_reason", "matched", "seed"):
                assert getattr(whole, name) == getattr(expected, name), name
            assert list(whole.logprobs) == list(expected.logprobs)
            assert list(whole.prompt_logprobs) == list(expected.prompt_logprobs)
            assert whole.usage is not None
            assert whole.usage.output_len == expected.usage.output_len
            assert whole.usage.prompt_len == 3
            await _until(lambda: not len(ends.control.in_flight))

    long_engine.reset_prefix_cache()
    _run(work())


@pytest.mark.parametrize("stop", [(), ("e",)])
def test_a_request_that_was_read_leaves_nothing_to_the_garbage_collector(
    long_engine: Engine, stop: tuple[str, ...]
) -> None:
    async def work() -> None:
        async with _ends(long_engine) as ends:
            streams = await ends.start([65], sampling=replace(GREEDY, stop=stop))
            left = ref(streams[0].handle.queue)
            await _read(*streams)
            del streams
            await _until(lambda: not len(ends.control.in_flight))
            assert left() is None

    gc.disable()
    try:
        _run(work())
    finally:
        gc.enable()


def test_media_cross_with_their_prompt(tmp_path: Path) -> None:
    options: Any = {"weights": "dummy", "memory": "8MiB", "max_len": 1024}
    content = [
        {"type": "image", "image": png(56, 84)},
        {"type": "text", "text": "and"},
        {"type": "video", "video": film(4, 28, 56)},
    ]
    with Engine(save_seeing(tmp_path), backend="reference", **options) as seeing:
        prompt = seeing.encode_chat([{"role": "user", "content": content}])
        expected = seeing.generate([prompt], GREEDY)[0]
        other = seeing.encode_chat(
            [{"role": "user", "content": [{**content[0], "image": png(28, 56)}]}]
        )

        async def work() -> None:
            async with _ends(seeing) as ends:
                streams = await ends.start(prompt, other)
                first, second = [merge([each async for each in stream]) for stream in streams]
                assert first.token_ids == expected.token_ids
                assert second.token_ids == seeing.generate([other], GREEDY)[0].token_ids
                assert second.token_ids != first.token_ids

        _run(work())


def test_where_the_engine_s_process_ends_everybody_is_told(long_engine: Engine) -> None:
    async def work() -> None:
        async with _ends(long_engine) as ends:
            (stream,) = await ends.start([65], sampling=LONG)
            await anext(stream)
            ends.seat.link.close()
            with pytest.raises(EngineClosed):
                await _read(stream)
            assert ends.drains == 1
            with pytest.raises(EngineClosed):
                await ends.start([65])
            with pytest.raises(EngineClosed):
                await ends.client.stats()

    _run(work())


def test_where_an_api_server_ends_its_requests_are_stopped(long_engine: Engine) -> None:
    async def work() -> None:
        async with _ends(long_engine) as ends:
            streams = await ends.start([65], [66], sampling=LONG)
            await anext(streams[0])
            await _until(lambda: long_engine.stats().running == 2)
            long_engine.freeze()  # so that they do not end by themselves
            try:
                ends.client.link.close()
                await ends.lost.wait()
                await _until(lambda: long_engine.stats().running == 0)
                await _until(lambda: not len(ends.control.in_flight))
            finally:
                long_engine.thaw()

    _run(work())


def test_who_stops_waiting_for_a_start_leaves_nothing_behind(long_engine: Engine) -> None:
    async def work() -> None:
        async with _ends(long_engine) as ends:
            before = long_engine.stats().finished
            ends.control.gate.shut()
            starting = asyncio.ensure_future(ends.start([65], sampling=LONG))
            await asyncio.sleep(0.01)
            starting.cancel()
            await asyncio.wait([starting])
            ends.control.gate.open()
            (stream,) = await ends.start([66], sampling=GREEDY)
            assert [output async for output in stream]
            await _until(lambda: not len(ends.control.in_flight))
            after = long_engine.stats().finished
            assert after[FinishReason.STOPPED] == before[FinishReason.STOPPED] + 1
            assert after[FinishReason.LENGTH] == before[FinishReason.LENGTH] + 1

    _run(work())


def test_a_stop_string_ends_the_choice_in_the_engine_too(long_engine: Engine) -> None:
    start = long_engine.generate([[65]], GREEDY)[0].text
    sampling = SamplingParams(temperature=0, ignore_eos=True, stop=[start[3:5]])

    async def work() -> None:
        async with _ends(long_engine) as ends:
            before = long_engine.stats().finished
            (stream,) = await ends.start([65], sampling=sampling)
            whole = merge([output async for output in stream])
            assert whole.finish_reason is FinishReason.STOP
            assert whole.matched == start[3:5]
            await _until(lambda: not len(ends.control.in_flight))
            after = long_engine.stats().finished
            assert after[FinishReason.STOP] == before[FinishReason.STOP] + 1
            assert after[FinishReason.LENGTH] == before[FinishReason.LENGTH]

    _run(work())


def test_a_request_that_is_over_before_it_is_known_is_forgotten(
    long_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Engine.start_relayed

    def begin_and_wait(self: Engine, *given: Any) -> Any:
        request = begin(self, *given)
        self.hand_over()  # as anybody's next command does
        while not given[3].is_over:
            sleep(0.001)
        return request

    monkeypatch.setattr(Engine, "start_relayed", begin_and_wait)

    async def work() -> None:
        async with _ends(long_engine) as ends:
            (stream,) = await ends.start([65])
            assert [output async for output in stream]
            await _until(lambda: not len(ends.control.in_flight))

    _run(work())


def test_every_choice_of_a_refused_prompt_is_told(long_engine: Engine) -> None:
    sampling = SamplingParams(n=3, max_tokens=2)

    async def work() -> None:
        async with _ends(long_engine) as ends:
            (stream,) = await ends.start([9999], sampling=sampling, at_end=True)
            outputs = [output async for output in stream]
            assert sorted(output.index for output in outputs) == [0, 1, 2]
            assert all(isinstance(output.error, InvalidPrompt) for output in outputs)

    _run(work())


@pytest.mark.parametrize("at_end", [False, True])
def test_a_refused_prompt_takes_the_others_with_it(long_engine: Engine, at_end: bool) -> None:
    async def work() -> None:
        async with _ends(long_engine) as ends:
            with pytest.raises(InvalidPrompt, match="9999"):
                await _read(*await ends.start([65], [9999], sampling=LONG, at_end=at_end))
            await _until(lambda: long_engine.stats().running == 0)
            await _until(lambda: not len(ends.control.in_flight))

    _run(work())


def test_an_operator_stops_a_request_by_its_id(long_engine: Engine) -> None:
    async def work() -> None:
        async with _ends(long_engine) as ends:
            (stream,) = await ends.start([65], sampling=LONG)
            await anext(stream)
            assert ends.control.abort(["other"]) == []
            assert ends.control.abort(["r"]) == ["r"]
            *_, last = [output async for output in stream]
            assert last.finish_reason is FinishReason.STOPPED

    _run(work())


def test_frames_of_any_size_arrive_in_order_however_they_are_cut() -> None:
    async def work() -> None:
        ours, theirs = socket.socketpair()
        frames: list[bytes] = []
        over = asyncio.Event()
        link = Link(ours, frames.extend, over.set)
        link.open()
        sent = [b"", b"a", bytes(300_000), b"b" * 70_000]
        data = b"".join(struct.pack("<Q", len(each)) + each for each in sent)
        loop = asyncio.get_running_loop()
        theirs.setblocking(False)
        for start, stop in pairwise((0, 1, 7, 8, 13, 17, 25, 100_000, len(data))):
            await loop.sock_sendall(theirs, data[start:stop])
            await asyncio.sleep(0)
        theirs.close()
        await over.wait()
        assert frames == sent
        assert link.is_closed

    _run(work())


def test_a_process_that_does_not_read_loses_its_link() -> None:
    async def work() -> None:
        ours, theirs = socket.socketpair()
        over = asyncio.Event()
        link = Link(ours, lambda _: None, over.set, most_unsent=1 << 20)
        link.open()
        while not link.is_closed:
            link.send(bytes(1 << 16))
            await asyncio.sleep(0)
        assert over.is_set()
        link.send(b"lost")
        theirs.close()

    _run(work())
