"""Client disconnects: the request ends, in whatever phase it is."""

import asyncio
import json
from contextlib import contextmanager
from dataclasses import replace
from threading import Semaphore

import pytest
from spaninfer_engine import Engine, EngineConfig
from spaninfer_engine.startup.build import build
from spaninfer_serving import Settings, create_app

LONG = {"prompt": "abc", "max_tokens": 240, "ignore_eos": True}
ALL = 1_000_000  # steps


class PacedRunner:
    """A runner that begins so many steps as it is allowed: clients leave at a step that is known,
    however late the system lets them run.
    """

    lookahead = 0

    def __init__(self, runner):
        self._runner, self._allowed = runner, Semaphore(0)
        self.run_idle_work, self.close = runner.run_idle_work, runner.close

    def allow(self, num_steps):
        self._allowed.release(num_steps)

    def start(self, plan):
        assert self._allowed.acquire(timeout=120)
        return self._runner.start(plan)


@contextmanager
def paced_engine(folder, **options):
    """Give an engine, and what allows it so many more steps."""
    parts = build(EngineConfig(model=folder, backend="reference", memory=1 << 22, **options))
    runner = PacedRunner(parts.runner)
    with Engine(replace(parts, runner=runner)) as engine:
        try:
            yield engine, runner.allow
        finally:
            runner.allow(ALL)


class Client:
    """One connection to an app, as its server sees it."""

    def __init__(self, app, body, path="/v1/completions"):
        self.messages, self.left = [], asyncio.Event()
        self.started = asyncio.Event()
        self.was_read = asyncio.Event()  # the app has the request, and asks whether we leave
        self._body = [json.dumps(body).encode()]
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "method": "POST",
            "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"",
            "headers": [(b"content-type", b"application/json")], "http_version": "1.1",
        }  # fmt: skip
        self.answering = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def leave(self):
        self.left.set()
        await asyncio.wait_for(self.answering, 120)

    async def _receive(self):
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        self.was_read.set()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        self.messages.append(message)
        if message.get("body"):
            self.started.set()


async def until(condition):
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.001)


def nothing_left(engine):
    stats = engine.stats()
    return stats.running == stats.waiting == 0 and all(not spans.in_use for spans in stats.spans)


def stopped(engine):
    return sum(n for reason, n in engine.stats().finished.items() if reason.value == "stopped")


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_in_the_middle_of_an_answer_ends_the_request(folder, stream):
    async def drive():
        client = Client(create_app(engine, Settings()), LONG | {"stream": stream})
        allow(3)
        await until(lambda: engine.stats().generated_tokens == 3)
        await client.leave()
        allow(ALL)
        await until(lambda: nothing_left(engine))

    with paced_engine(folder) as (engine, allow):
        asyncio.run(drive())

    assert stopped(engine) == 1
    assert engine.stats().generated_tokens <= 4  # a step had been planned


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_the_queue_ends_a_request_that_never_ran(folder, stream):
    async def drive():
        app = create_app(engine, Settings())
        first = Client(app, LONG | {"stream": True})
        await until(lambda: engine.stats().running == 1)
        second = Client(app, LONG | {"stream": stream})
        await second.was_read.wait()
        allow(1)  # behind a step, the engine hears of what came meanwhile
        await until(lambda: engine.stats().waiting == 1)
        await second.leave()
        allow(1)
        await until(lambda: engine.stats().waiting == 0)
        assert engine.stats().running == 1
        await first.leave()
        allow(ALL)
        await until(lambda: nothing_left(engine))

    with paced_engine(folder, max_running=1) as (engine, allow):
        asyncio.run(drive())


def test_all_choices_of_all_prompts_end_with_their_client(folder):
    async def drive():
        body = LONG | {"prompt": ["abc", "abd", "xyz"], "n": 4, "stream": True}
        client = Client(create_app(engine, Settings()), body)
        allow(20)
        await client.started.wait()
        await client.leave()
        allow(ALL)
        await until(lambda: nothing_left(engine))

    with paced_engine(folder) as (engine, allow):
        asyncio.run(drive())

    assert stopped(engine) == 12


def test_a_client_that_leaves_while_it_sends_never_reaches_the_engine(engine):
    async def drive():
        app = create_app(engine, Settings())
        client = Client(app, {})
        client._body.clear()
        client.left.set()
        await asyncio.wait_for(client.answering, 120)
        return client.messages

    assert asyncio.run(drive()) == []


def test_a_body_that_does_not_come_is_not_waited_for(engine):
    async def drive():
        app = create_app(engine, Settings(body_timeout_s=0.05))
        client = Client(app, {})
        client._body.clear()
        await asyncio.wait_for(client.answering, 120)
        return client.messages[0]["status"]

    assert asyncio.run(drive()) == 408


def test_spans_and_places_are_all_there_after_many_have_left(engine):
    total = [spans.total for spans in engine.stats().spans]

    async def one(app, number):
        client = Client(app, LONG | {"prompt": f"number {number}", "stream": number % 3 > 0})
        for _ in range(number % 20):
            await asyncio.sleep(0)
        await client.leave()

    async def drive():
        app = create_app(engine, Settings())
        for first in range(0, 200, 25):
            await asyncio.gather(*(one(app, first + i) for i in range(25)))
        await until(lambda: nothing_left(engine))

    asyncio.run(drive())

    assert [spans.free + spans.cached for spans in engine.stats().spans] == total
    engine.sync(timeout=120)  # every request it still knows of has finished
