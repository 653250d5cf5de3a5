"""Clients that leave: the request ends with them, in whatever phase it is."""

import asyncio
import json

import pytest
from spaninfer_engine import Engine
from spaninfer_serving import Settings, create_app

LONG = {"prompt": "abc", "max_tokens": 240, "ignore_eos": True}


@pytest.fixture
def slow_engine(folder):
    """An engine that computes one request at a time, so that a second one waits."""
    with Engine(folder, backend="reference", memory=1 << 22, max_running=1) as engine:
        yield engine


class Client:
    """One connection to an app, as its server sees it."""

    def __init__(self, app, body, path="/v1/completions"):
        self.messages, self.left = [], asyncio.Event()
        self.started = asyncio.Event()
        self._body = [json.dumps(body).encode()]
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "method": "POST",
            "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"",
            "headers": [(b"content-type", b"application/json")], "http_version": "1.1",
        }  # fmt: skip
        self.answering = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def leave(self):
        self.left.set()
        await asyncio.wait_for(self.answering, 20)

    async def _receive(self):
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        self.messages.append(message)
        if message.get("body"):
            self.started.set()


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def nothing_left(engine):
    stats = engine.stats()
    return stats.running == stats.waiting == 0 and all(not spans.held for spans in stats.spans)


def stopped(engine):
    return sum(n for reason, n in engine.stats().finished.items() if reason.value == "stopped")


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_in_the_middle_of_an_answer_ends_the_request(slow_engine, stream):
    async def drive():
        app = create_app(slow_engine, Settings())
        client = Client(app, LONG | {"stream": stream})
        await until(lambda: slow_engine.stats().generated_tokens > 2)
        await client.leave()
        await until(lambda: nothing_left(slow_engine))

    asyncio.run(drive())

    assert stopped(slow_engine) == 1
    assert slow_engine.stats().generated_tokens < 240


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_the_queue_ends_a_request_that_never_ran(slow_engine, stream):
    async def drive():
        app = create_app(slow_engine, Settings())
        first = Client(app, LONG | {"stream": True})
        await until(lambda: slow_engine.stats().running == 1)
        second = Client(app, LONG | {"stream": stream})
        await until(lambda: slow_engine.stats().waiting == 1)
        await second.leave()
        await until(lambda: slow_engine.stats().waiting == 0)
        assert slow_engine.stats().running == 1
        await first.leave()
        await until(lambda: nothing_left(slow_engine))

    asyncio.run(drive())


def test_all_choices_of_all_prompts_end_with_their_client(engine):
    async def drive():
        body = LONG | {"prompt": ["abc", "abd", "xyz"], "n": 4, "stream": True}
        client = Client(create_app(engine, Settings()), body)
        await client.started.wait()
        await client.leave()
        await until(lambda: nothing_left(engine))

    before = stopped(engine)

    asyncio.run(drive())

    assert stopped(engine) - before == 12


def test_a_client_that_leaves_while_it_sends_never_reaches_the_engine(engine):
    async def drive():
        app = create_app(engine, Settings())
        client = Client(app, {})
        client._body.clear()
        client.left.set()
        await asyncio.wait_for(client.answering, 20)
        return client.messages

    assert asyncio.run(drive()) == []


def test_a_body_that_does_not_come_is_not_waited_for(engine):
    async def drive():
        app = create_app(engine, Settings(body_timeout_s=0.05))
        client = Client(app, {})
        client._body.clear()
        await asyncio.wait_for(client.answering, 20)
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

    assert [spans.free + spans.kept for spans in engine.stats().spans] == total
    engine.sync(timeout=20)  # every request it still knows of has finished
