"""Counts of load clients, however the stream is fragmented."""

import asyncio

import pytest
from spaninfer.bench.serve.clients import clients
from spaninfer.bench.soak.client import Target
from spaninfer_engine import ConfigError

EVENTS = b'data: {"a": 1}\n\ndata: {"a": 2}\n\ndata: [DONE]\n\n'
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
    len(EVENTS),
    EVENTS,
)
ANSWER = b'{"usage":{"completion_tokens":4,"total_tokens":9}}'
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
FOUR = {"max_tokens": 4}
HEAD = 20  # bytes: a status line


async def seen_of(pieces, body, enough):
    """Return what a client saw of a server that answers each request in these pieces."""

    async def answer(reader, writer):
        while await reader.read(1 << 16):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, asyncio.timeout(120):
        port = server.sockets[0].getsockname()[1]
        async with clients(Target("127.0.0.1", port), body, "/v1/completions", 1) as loading:
            while not enough(loading.seen) and loading.refusal is None:
                await asyncio.sleep(0)
            return loading.take()


def cut(answer, size):
    return [answer[:HEAD], *(answer[at : at + size] for at in range(HEAD, len(answer), size))]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_and_answers_are_counted_however_they_are_cut(size):
    pieces = cut(STREAM, size)

    seen = asyncio.run(seen_of(pieces, {**FOUR, "stream": True}, lambda seen: seen.answers == 3))

    assert seen.answers == 3
    assert 6 <= seen.events <= 8  # the fourth answer may have begun


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_whole_answers_are_counted_however_they_are_cut(size):
    seen = asyncio.run(seen_of(cut(WHOLE, size), FOUR, lambda seen: seen.answers == 3))

    assert seen.answers == 3


@pytest.mark.parametrize("body", [FOUR, {**FOUR, "stream": True}])
def test_a_refusal_ends_the_measurement(body):
    refusal = WHOLE.replace(b"200 OK", b"429 Too Many Requests")

    with pytest.raises(ConfigError, match=r"refused a request: .*429"):
        asyncio.run(seen_of([refusal], body, lambda _: False))


def test_an_answer_of_another_length_than_asked_ends_the_measurement():
    with pytest.raises(ConfigError, match=r'refused a request: .*"completion_tokens":4'):
        asyncio.run(seen_of([WHOLE], {"max_tokens": 5}, lambda _: False))
