"""Timeouts of idle connections, with a clock that the tests advance."""

import asyncio
import json

import pytest
import uvicorn
from spaninfer_serving.http.connection_slots import ConnectionSlots
from spaninfer_serving.http.protocol import HEAD_S, BoundedProtocol
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
ANSWER = "the server may answer, and the answer is waited for"


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time can be turned forward."""

    ahead_s = 0.0

    def time(self):
        return super().time() + self.ahead_s


class Heard(BoundedProtocol):
    """A connection, seen from its server."""

    num_bytes, is_lost = 0, False

    def data_received(self, data):
        super().data_received(data)
        self.num_bytes += len(data)

    def connection_lost(self, error):
        super().connection_lost(error)
        self.is_lost = True

    async def take(self, num_bytes):
        """Wait until so many bytes have come, or the connection is closed."""
        while self.num_bytes < num_bytes and not self.is_lost:
            await asyncio.sleep(0)


def talk(*script):
    """Return what a server sends until it closes the connection.

    Bytes of the script are sent, each when the server has those before; a number lets so many
    seconds pass.
    """
    with asyncio.Runner(loop_factory=Clock) as runner:
        return runner.run(_talk(script))


async def _talk(script):
    loop = asyncio.get_running_loop()
    may_answer, num_bytes, said = asyncio.Event(), 0, b""

    async def app(scope, receive, send):
        await may_answer.wait()
        await PlainTextResponse("hello")(scope, receive, send)

    config = uvicorn.Config(app, lifespan="off", log_level="critical", timeout_keep_alive=1)
    state = ServerState()
    server = await loop.create_server(
        lambda: Heard(config, state, {}, places=ConnectionSlots(100)), "127.0.0.1", 0
    )
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        while not state.connections:
            await asyncio.sleep(0)
        [heard] = state.connections
        try:
            for part in script:
                if part is ANSWER:
                    may_answer.set()
                    said += await reader.readuntil(b"hello")
                elif isinstance(part, bytes):
                    writer.write(part)
                    num_bytes += len(part)
                    await heard.take(num_bytes)
                else:
                    loop.ahead_s += part
                    await asyncio.sleep(0.001)  # comes behind all that is due
            return said + await asyncio.wait_for(reader.read(), 120)
        except (asyncio.IncompleteReadError, ConnectionError):  # it was closed before
            return said
        finally:
            writer.close()


@pytest.mark.parametrize("pieces", [(), (b"G",), (REQUEST[:-2],)])
def test_a_head_that_never_ends_costs_the_connection(pieces):
    assert talk(*pieces, HEAD_S) == b""


def test_one_byte_after_the_other_does_not_buy_time():
    slowly = [part for i in range(len(REQUEST)) for part in (REQUEST[i : i + 1], HEAD_S / 20)]

    assert talk(*slowly, ANSWER) == b""


def test_a_head_that_takes_its_time_is_answered():
    assert talk(REQUEST[:20], HEAD_S / 2, REQUEST[20:], ANSWER).endswith(b"hello")


def test_the_second_head_is_waited_for_no_longer_than_the_first():
    assert talk(REQUEST, ANSWER, b"GET / HT", HEAD_S).count(b"200 OK") == 1


def test_an_answer_may_take_longer_than_a_head():
    assert talk(REQUEST, 2 * HEAD_S, ANSWER).endswith(b"hello")


def test_requests_sent_at_once_are_answered_one_after_the_other():
    assert talk(REQUEST * 3, ANSWER).count(b"hello") == 3


@pytest.mark.parametrize("line", [b"GARBAGE", b"it's", b'"', b"'\"\\"])
def test_what_is_no_http_is_repeated_as_text(line):
    body = talk(line + b"\r\n\r\n").rpartition(b"\r\n\r\n")[2]

    message = json.loads(body)["error"]["message"]
    quoted = repr(bytearray(line)).removeprefix("bytearray(b").removesuffix(")")
    assert message == f"this is no request in HTTP/1.1: illegal request line: {quoted}"
