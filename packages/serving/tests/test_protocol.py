import asyncio

import pytest
import uvicorn
from spaninfer_serving import protocol
from spaninfer_serving.protocol import PatientProtocol
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def talk(*pieces, pause_s=0.0, answer_after_s=0.0):
    """Return what a server sends for these bytes, until it closes the connection."""

    async def app(scope, receive, send):
        await asyncio.sleep(answer_after_s)
        await PlainTextResponse("hello")(scope, receive, send)

    async def drive():
        config = uvicorn.Config(app, lifespan="off", log_level="critical", timeout_keep_alive=1)
        state = ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: PatientProtocol(config, state, {}), "127.0.0.1", 0
        )
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(pause_s)
            try:
                return await asyncio.wait_for(reader.read(), 20)
            except ConnectionError:  # it was closed while we wrote
                return b""
            finally:
                writer.close()

    return asyncio.run(drive())


@pytest.mark.parametrize("pieces", [(), (b"G",), (REQUEST[:-2],)])
def test_a_head_that_never_ends_costs_the_connection(monkeypatch, pieces):
    monkeypatch.setattr(protocol, "HEAD_S", 0.05)

    assert talk(*pieces) == b""


def test_one_byte_after_the_other_does_not_buy_time(monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_S", 0.05)

    assert talk(*(b"GET / HTTP/1.1\r\n"[i : i + 1] for i in range(16)), pause_s=0.01) == b""


def test_the_second_head_is_waited_for_no_longer_than_the_first(monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_S", 0.05)

    assert talk(REQUEST, b"GET / HT", pause_s=0.05).count(b"200 OK") == 1


def test_an_answer_may_take_longer_than_a_head(monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_S", 0.02)

    assert talk(REQUEST, answer_after_s=0.1).endswith(b"hello")


def test_requests_sent_at_once_are_answered_one_after_the_other():
    assert talk(REQUEST * 3).count(b"hello") == 3
