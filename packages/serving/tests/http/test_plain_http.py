"""The fast path for plain HTTP requests, against h11."""

import asyncio
import gc
import re
import socket
from functools import partial
from itertools import product
from random import Random
from types import SimpleNamespace
from weakref import ref

import h11
import pytest
import uvicorn
from attacks import BODY, posted
from spaninfer_engine.request.request import FinishReason
from spaninfer_serving.http import protocol
from spaninfer_serving.http.connection_slots import ConnectionSlots
from spaninfer_serving.http.plain_http import PlainCycle, plain_head
from spaninfer_serving.http.protocol import BoundedProtocol
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

GIVE_UP_S = 120
POST = b"POST /x?y=%20 HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\n"
GET = b"GET /a%20b HTTP/1.1\r\nHost: a\r\nconnection: keep-alive\r\n\r\n"

# Pieces of heads, right and wrong ones; heads are put together from one of each row.
METHODS = [b"GET", b"POST", b"HEAD", b"get", b"G T", b"PUT", b""]
TARGETS = [b"/", b"/v1/x?a=b", b"/%41", b"*", b"http://a/b", b"/a b", b"/\xc3\xa4", b"", b"/\x00"]
VERSIONS = [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"http/1.1", b"HTTP/1.1 ", b""]
ENDS = [b"\r\n", b"\n", b"\r", b"\r\n ", b"\r\n\t", b"\x00\r\n", b" \r\n"]
FIELDS = [
    b"Host: a", b"host:a", b"Host: b", b"Host:", b"Host : a", b" Host: a", b"X: y", b"X:y ", b"X:",
    b"X:  y  z ", b"X: y\tz", b"X:\ty", b"X: \xe4", b"X: \x7f", b"X: \x01", b"X", b": y", b"X(: y",
    b"x-y_z.1!: ~", b"Content-Length: 5", b"Content-Length: 05", b"Content-Length: 5, 5",
    b"Content-Length: 5,6", b"Content-Length: +5", b"Content-Length: -5", b"Content-Length: ",
    b"Content-Length: 1234567890123456789012", b"content-length: 6", b"Content-Length: 5 5",
    b"Content-Length: \xc2\xb2", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip",
    b"Connection: keep-alive", b"Connection: Keep-Alive", b"Connection: close",
    b"Connection: keep-alive, close", b"Connection: upgrade", b"Upgrade: websocket",
    b"Expect: 100-continue", b"Cookie: a=b", b"Authorization: Bearer k",
]  # fmt: skip


def heads(count):
    """Return heads with zero to two things about them that are not as usual."""
    random = Random(0)
    for _ in range(count):
        line = [METHODS[random.randrange(2)], TARGETS[0], VERSIONS[0]]
        fields = [b"Host: a", *([b"Content-Length: 5"] if line[0] == b"POST" else [])]
        ends = [b"\r\n"] * 8
        for _ in range(random.randrange(4)):
            place = random.randrange(8)
            if place < 3:
                line[place] = random.choice((METHODS, TARGETS, VERSIONS)[place])
            elif place == 3:
                ends[random.randrange(8)] = random.choice(ENDS)
            elif place == 4:
                fields.pop(random.randrange(len(fields))) if fields else None
            else:
                fields.insert(random.randrange(len(fields) + 1), random.choice(FIELDS))
        lines = [b" ".join(line), *fields]
        said = b"".join(each + end for each, end in zip(lines, ends, strict=False))
        yield said + ends[-1]


BEHIND = b"hello, world"


def by_h11(head):
    """Return what h11 makes of a request: its head, its body, and whether it is the last one."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(head + BEHIND)
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    said = b""
    while isinstance(event := connection.next_event(), h11.Data):
        said += event.data
    assert isinstance(event, h11.EndOfMessage)
    headers = [(name.lower(), value) for name, value in request.headers]
    return (
        request.method, request.target, request.http_version, headers, said,
        connection.their_state is h11.MUST_CLOSE, connection.they_are_waiting_for_100_continue,
    )  # fmt: skip


def test_what_is_plain_means_the_same_to_h11():
    num_plain = 0
    for data in heads(6000):
        head = plain_head(data + BEHIND)
        if head is not None:
            num_plain += 1
            body = (data + BEHIND)[head.end :][: head.content_length]
            assert by_h11(data) == (
                head.method.encode(), head.target, b"1.1", head.headers, body,
                head.asks_to_close, False,
            ), data  # fmt: skip

    assert 1000 < num_plain < 5000


@pytest.mark.parametrize("head", [POST, GET])
def test_what_clients_usually_send_is_plain(head):
    assert plain_head(head) is not None
    assert all(plain_head(head[:end]) is None for end in range(len(head)))


@pytest.mark.parametrize("field", FIELDS)
def test_fields_that_change_how_a_request_is_framed_are_h11s(field):
    name = field.partition(b":")[0].strip().lower()
    head = plain_head(GET.replace(b"connection: keep-alive", field))

    if name in (b"transfer-encoding", b"expect", b"upgrade", b"content-length", b"host"):
        assert head is None
    if name == b"connection":
        value = field.partition(b":")[2].strip().lower()
        assert (head is not None) == (value in (b"keep-alive", b"close"))


def test_a_head_that_goes_on_and_on_is_given_up_in_time_in_proportion():
    endless = b"POST / HTTP/1.1\r\n" + b"X: " + b" a" * (1 << 17)

    assert plain_head(endless) is None
    assert plain_head(endless + b"\r\n" * 3) is None


async def application(scope, receive, send):
    """Answer by the path of a request; the body is read where it says so."""
    message = {"more_body": "ignore" not in scope["path"]}
    body = b""
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    said = b"%b %b %b" % (scope["raw_path"], scope["query_string"], body)
    answers = {
        "/stream": lambda: StreamingResponse(pieces(said)),
        "/silent": lambda: StreamingResponse(pieces(b"")),
        "/empty": lambda: Response(status_code=204),
        "/close": lambda: PlainTextResponse(said, headers={"Connection": "close"}),
        "/ignore": lambda: PlainTextResponse("no", 401),
        "/break": lambda: StreamingResponse(broken()),
        "/short": lambda: PlainTextResponse(said, headers={"Content-Length": "99"}),
        "/inject": lambda: PlainTextResponse(said, headers={"X": "a\r\nSet-Cookie: b"}),
        "/long": lambda: PlainTextResponse(said, headers={"Content-Length": "1"}),
    }
    answer = answers.get(scope["path"], lambda: PlainTextResponse(said))
    await answer()(scope, receive, send)


async def pieces(said):
    for number in range(len(said)):
        yield said[number : number + 1]


async def broken():
    yield b"so far"
    raise ValueError("and no further")


def answers_to(*script, make_loop=asyncio.SelectorEventLoop):
    """Return what a server sends to these bytes, each sent when those before were taken in; what
    became of each request; and how many of them were plain.
    """
    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(asyncio.wait_for(_answers_to(script), GIVE_UP_S))


async def _answers_to(script):
    loop = asyncio.get_running_loop()
    state, taken, num_plain = ServerState(), asyncio.Queue(), 0

    class Watched(BoundedProtocol):
        def data_received(self, data):
            super().data_received(data)
            taken.put_nowait(len(data))

        def connection_lost(self, error):
            super().connection_lost(error)
            taken.put_nowait(1 << 30)

        def _begin(self, head):
            nonlocal num_plain
            num_plain += 1
            return super()._begin(head)

    config = uvicorn.Config(application, lifespan="off", log_level=60)
    make = partial(Watched, config, state, {}, places=ConnectionSlots(100))
    server = await loop.create_server(make, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for part in script:
            writer.write(part)
            num_left = len(part)
            while num_left > 0 and state.connections:
                num_left -= await taken.get()
        while state.tasks:
            await asyncio.sleep(0)
        for connection in list(state.connections):
            connection.transport.close()
        said = await reader.read()
        writer.close()
    return re.sub(rb"(date|x-request-id): [^\r]*\r\n", b"", said), num_plain


def post(path, body=b"hello", length=None):
    """Return a request with a body."""
    length = len(body) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
    return head.encode() + body


LAST = b"\r\nConnection: close\r\n"
PATHS = ["/", "/stream", "/silent", "/empty", "/ignore", "/close", "/break"]
WRONG = ["/short", "/inject"]
SCRIPTS = {
    **{f"one {path}": (post(path),) for path in PATHS + WRONG},
    **{f"{one} then {two}": (post(one), post(two)) for one, two in product(PATHS[:5], PATHS)},
    **{f"{path} at once with more": (post(path) + post("/") + GET + post("/"),) for path in PATHS},
    **{f"{path} in bytes": tuple(post(path)[i : i + 1] for i in range(80)) for path in PATHS[:3]},
    "the body behind the head": (POST, b"he", b"llo"),
    "the body with the next request": (POST, b"he", b"llo" + POST + b"hel", b"lo" + GET),
    "half of the next head behind": (GET + POST[:30], POST[30:] + b"hello" + GET[:9], GET[9:]),
    **{f"last {path}": (post(path).replace(b"\r\n", LAST, 1),) for path in PATHS + WRONG},
    "a large body": (post("/", b"x" * 300_000), GET),
    "a large body in pieces": (post("/", b"", 300_000), *[b"x" * 50_000] * 6, GET),
    "a refused body that still comes": (post("/ignore", b"", 9), b"four", b"four", b"4" + GET),
    "no request behind one": (GET, b"nonsense\r\n\r\n"),
    "no request at once behind one": (GET + b"nonsense\r\n\r\n",),
    "h11's between plain ones": (GET, GET.replace(b"GET", b"HEAD"), GET),
    "a body in chunks between plain ones": (
        *(GET, POST.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked")),
        *(b"5\r\nhel", b"lo\r\n0\r\n\r\n", GET),
    ),
}  # fmt: skip


@pytest.fixture(params=["asyncio", "uvloop"])
def make_loop(request):
    """What makes an event loop, of each kind that servers may find installed."""
    if request.param == "asyncio":
        return asyncio.SelectorEventLoop
    return pytest.importorskip("uvloop", reason="the extra 'fast' is not installed").new_event_loop


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_plain_request_is_answered_as_h11_answers_it(name, monkeypatch, make_loop):
    script = SCRIPTS[name]
    said, num_plain = answers_to(*script, make_loop=make_loop)
    monkeypatch.setattr(protocol, "plain_head", lambda _: None)
    by_h11, none = answers_to(*script)

    assert said == by_h11
    assert none == 0
    assert (num_plain > 0) == (not name.endswith("in bytes"))


def test_the_head_of_an_answer_of_known_length_travels_with_its_body():
    written = []

    async def drive():
        transport = SimpleNamespace(write=written.append)
        cycle = PlainCycle(
            plain_head(GET),
            scope={},
            conn=h11.Connection(h11.SERVER),
            transport=transport,
            flow=FlowControl(transport),
            message_event=asyncio.Event(),
            logger=None,
            access_logger=None,
            access_log=False,
            default_headers=[],
            on_response=lambda: None,
        )
        await PlainTextResponse("hello")({"type": "http"}, cycle.receive, cycle.send)

    asyncio.run(drive())

    [answer] = written
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nhello")


@pytest.mark.usefixtures("each_loop")
@pytest.mark.parametrize("stream", [False, True])
def test_leaving_ends_a_plain_request(live, engine, until, at_rest, stream):
    stopped_before = engine.stats().finished[FinishReason.STOPPED]
    with socket.create_connection(live().address) as connection:
        connection.sendall(posted(BODY | {"stream": stream}))
        until(lambda: engine.stats().running)

    assert at_rest().finished[FinishReason.STOPPED] == stopped_before + 1


@pytest.mark.parametrize("request_bytes", [POST + b"hello", post("/stream")])
def test_a_connection_that_has_ended_leaves_nothing_to_the_garbage_collector(request_bytes):
    class Kept(BoundedProtocol):
        def connection_made(self, transport):
            super().connection_made(transport)
            kept.append(ref(self))

        def data_received(self, data):
            super().data_received(data)
            kept.append(ref(self.cycle))

    async def drive():
        config = uvicorn.Config(application, lifespan="off", log_level=60)
        make = partial(Kept, config, ServerState(), {}, places=ConnectionSlots(100))
        async with await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(request_bytes.replace(b"\r\n", LAST, 1))
            await reader.read()
            writer.close()
            await writer.wait_closed()

    kept = []
    gc.disable()
    try:
        asyncio.run(drive())
        left = [each() for each in kept]
    finally:
        gc.enable()

    assert left == [None, None]


@pytest.mark.parametrize("path", ["/long", "/inject"])
def test_nothing_is_sent_of_an_answer_with_a_wrong_head(path):
    assert answers_to(post(path)) == (b"", 1)
