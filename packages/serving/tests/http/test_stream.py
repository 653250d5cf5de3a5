import asyncio
import json

import pytest
from pydantic import BaseModel
from spaninfer_engine.errors import EngineClosed
from spaninfer_serving.http.stream import KEEP_ALIVE, DataEvents, EventStream


class Chunk(BaseModel):
    number: int


def sent(chunks, *, keep_alive_s=3600.0, leave_after=None, cancel_after=None, hear=None):
    """Return what a stream sends; the client leaves, or the server stops, after so many parts.

    `hear` is called with each part.
    """
    parts = []

    async def drive():
        left, many = asyncio.Event(), asyncio.Event()

        async def receive():
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            parts.append(message.get("body", b""))
            if hear is not None:
                hear(parts[-1])
            if leave_after is not None and len(parts) > leave_after:
                left.set()
            if cancel_after is not None and len(parts) > cancel_after:
                many.set()

        stream = EventStream(chunks, keep_alive_s, "prompt", DataEvents())
        answering = asyncio.ensure_future(stream({"type": "http"}, receive, send))
        if cancel_after is not None:
            await many.wait()
            answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)

    asyncio.run(drive())
    return b"".join(parts).decode()


def events(text):
    return [part.removeprefix("data: ") for part in text.split("\n\n") if part]


async def numbers(count, pause_s=0.0, closed=None):
    try:
        for number in range(count):
            await asyncio.sleep(pause_s)
            yield Chunk(number=number)
    finally:
        if closed is not None:
            closed.append(True)


def test_each_chunk_is_an_event_and_done_is_the_last():
    assert events(sent(numbers(2))) == ['{"number":0}', '{"number":1}', "[DONE]"]


def test_a_silence_is_filled_with_comments():
    was_heard = asyncio.Event()

    async def silent():
        await asyncio.wait_for(was_heard.wait(), 120)
        yield Chunk(number=0)

    text = sent(
        silent(), keep_alive_s=0.01, hear=lambda part: part == KEEP_ALIVE and was_heard.set()
    )

    *comments, number, done = events(text)
    assert set(comments) == {": keep-alive"}
    assert (number, done) == ('{"number":0}', "[DONE]")


def test_a_stream_that_talks_needs_no_comments():
    assert ": keep-alive" not in events(sent(numbers(50, pause_s=0.001), keep_alive_s=120))


def test_an_error_in_the_middle_is_an_event_before_the_last():
    async def breaks():
        yield Chunk(number=0)
        raise EngineClosed("the engine is closed")

    first, error, last = events(sent(breaks()))

    assert (first, last) == ('{"number":0}', "[DONE]")
    assert json.loads(error)["error"]["code"] == "unavailable"


@pytest.mark.parametrize(
    ("error", "has_traceback"), [(EngineClosed("it is gone"), False), (KeyError("fault"), True)]
)
def test_an_engine_that_is_gone_is_a_line_in_the_log_for_each_of_its_streams(
    caplog, error, has_traceback
):
    async def failing():
        yield Chunk(number=0)
        raise error

    sent(failing())

    (record,) = caplog.records
    assert record.getMessage() == f"a streamed request failed: {error}"
    assert bool(record.exc_info) is has_traceback


def test_a_client_that_leaves_closes_the_chunks():
    closed = []

    sent(numbers(1000, pause_s=0.001, closed=closed), leave_after=3)

    assert closed == [True]


def test_a_server_that_stops_says_so_and_closes_the_chunks():
    closed = []

    text = sent(numbers(1000, pause_s=0.001, closed=closed), cancel_after=3)

    *_, error, last = events(text)
    assert json.loads(error)["error"]["code"] == "stopping"
    assert last == "[DONE]"
    assert closed == [True]
