"""Attacks over real sockets, with bounds on their cost to the server and to other clients."""

import http.client
import json
import logging
import socket
import sys
from contextlib import closing, contextmanager, suppress

import pytest
from attacks import BODY, head, open_bodies, pipelining, posted, silent_connections, slow_reader
from spaninfer_serving.http import protocol
from spaninfer_serving.http.protocol import BoundedProtocol

pytestmark = pytest.mark.usefixtures("each_loop")

KEY = "Authorization: Bearer k"
READ_AT_ONCE = 1 << 18  # by asyncio
OF_THE_CLIENT = {"encodings.idna", "stringprep"}


def ask(address, *lines, body=None, method="POST", path="/v1/completions"):
    """Return status, headers and body of the answer to one request."""
    with closing(http.client.HTTPConnection(*address, timeout=120)) as connection:
        headers = {"Content-Type": "application/json"}
        headers |= dict(line.split(": ", 1) for line in lines)
        data = None if method == "GET" else json.dumps(body or {"prompt": "x", "max_tokens": 1})
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def ask_again(address):
    """Return the status of the answer to one request, which is sent again as clients do where the
    connection ends first: twenty others may connect before this process has its next turn to send.
    """
    for _ in range(20):
        with suppress(ConnectionError):
            return ask(address)[0]
    return None


@contextmanager
def connected(address):
    with socket.create_connection(address, timeout=120) as connection:
        yield connection


def answer_of(connection):
    """Return the status and the JSON body of the next answer on a connection."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status, answer.headers, json.loads(answer.read())


def is_closed_by_server(connection):
    with suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass
    return True


@pytest.mark.parametrize(
    "request_bytes",
    [head("GET", "/"), head("GET", "/v1/models"), posted({"prompt": "x", "max_tokens": 1}, KEY)],
    ids=["public", "refused", "answered"],
)
def test_requests_sent_without_end_pile_up_no_further_than_one_read(live, until, request_bytes):
    server = live(api_keys=("k",))
    kept = []

    def some_are_answered():
        kept.extend(len(each.conn.trailing_data[0]) for each in server.connections)
        return attack.num_received > 1 << 15

    with pipelining(server.address, request=request_bytes, num=2) as attack:
        until(some_are_answered)

    assert max(kept) <= 2 * READ_AT_ONCE


@pytest.mark.parametrize(
    "path", ["/health", "/health/live", "/", "/page/app.js", "/v1/completions", "/nothing"]
)
def test_bodies_of_strangers_take_no_room_from_those_with_a_key(live, until, path):
    server = live(api_keys=("k",), max_body_bytes=1 << 17)

    with open_bodies(server.address, path=path, num=80, size=1 << 17) as attack:
        until(lambda: attack.num_sent > 80 * (1 << 17) - 100)
        statuses = {ask(server.address, KEY)[0] for _ in range(5)}
        until(
            lambda: all(each.cycle and each.cycle.response_complete for each in server.connections)
        )
        kept = sum(len(each.cycle.body) for each in server.connections)

    assert statuses == {200}
    assert kept == 0


def test_the_rest_of_a_refused_body_is_thrown_away_to_an_end(live, monkeypatch):
    monkeypatch.setattr(protocol, "DISCARD_BYTES", 1 << 20)
    server = live(api_keys=("k",))
    with connected(server.address) as connection:
        connection.sendall(head("POST", "/v1/completions", f"Content-Length: {1 << 30}"))

        status, _, body = answer_of(connection)

        assert status == 401
        assert body["error"]["code"] == "invalid_api_key"
        with pytest.raises(ConnectionError):
            connection.sendall(b"x" * (1 << 26))


def test_a_refused_body_that_is_sent_to_its_end_leaves_the_connection_usable(live):
    server = live(api_keys=("k",))
    with connected(server.address) as connection:
        connection.sendall(posted({"prompt": "x" * 100_000}))
        refused = answer_of(connection)
        connection.sendall(posted({"prompt": "x", "max_tokens": 1}, KEY))
        answered = answer_of(connection)

    assert (refused[0], answered[0]) == (401, 200)


def test_the_rest_of_a_refused_body_that_never_comes_costs_the_connection(live, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_S", 0.01)
    server = live(api_keys=("k",))
    server.server.config.timeout_keep_alive = 10_000
    with connected(server.address) as connection:
        connection.sendall(head("POST", "/health", "Content-Length: 9") + b"x")

        assert answer_of(connection)[0] == 405
        assert is_closed_by_server(connection)


def test_silent_connections_keep_no_other_out(live, until, caplog):
    server = live()
    places = next(iter(server.server.config.http_protocol_class.keywords.values()))
    places.num = 20

    with caplog.at_level(logging.WARNING), silent_connections(server.address, num=100) as attack:
        until(lambda: attack.num_refused > 300)
        statuses = [ask_again(server.address) for _ in range(10)]

    assert statuses == [200] * 10
    said = [each.message for each in caplog.records if each.name.endswith(".connection_slots")]
    assert said[0].startswith("all 20 places for connections are taken")


@pytest.fixture
def impatient(monkeypatch):
    """Servers that wait a moment only for clients that do not read, and can send little ahead."""
    monkeypatch.setattr(protocol, "STALL_S", 0.1)
    made = BoundedProtocol.connection_made

    def connection_made(self, transport):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(self, transport)

    monkeypatch.setattr(BoundedProtocol, "connection_made", connection_made)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("stream", [True, False])
def test_unread_answers_end_with_their_connection(live, until, at_rest, stream):
    server = live()
    asked = BODY | {"n": 4, "stream": stream, "logprobs": 5}

    with slow_reader(server.address, body=asked, num=2) as attack:
        until(lambda: attack.num_sent > 0 and len(server.connections) > 0)
        until(lambda: not server.connections)
        assert at_rest().running == 0


@pytest.mark.usefixtures("impatient")
def test_an_answer_that_is_read_slowly_arrives_whole(live, monkeypatch):
    monkeypatch.setattr(protocol, "PROGRESS_BYTES", 1)
    server = live()
    with connected(server.address) as connection:
        connection.sendall(posted(BODY | {"n": 4, "logprobs": 5}, "Connection: close"))
        answer = b""
        while data := connection.recv(1 << 10):
            answer += data

    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000, 431),
        (head("POST", "/v1/completions", "Content-Length: 1", "Content-Length: 2"), 400),
        (head("POST", "/v1/completions", "Content-Length: -1"), 400),
        (head("POST", "/v1/completions", "Transfer-Encoding: gzip"), 501),
        (head("POST", "/v1/completions", "Transfer-Encoding: chunked", "Content-Length: 5"), 400),
    ],
)
def test_what_is_no_request_is_refused_as_everything_else_is(live, request_bytes, status):
    server = live()
    with connected(server.address) as connection:
        connection.sendall(request_bytes)

        found, headers, body = answer_of(connection)

        assert found == status
        assert headers["content-type"] == "application/json"
        assert headers["x-request-id"].startswith("req-")
        assert headers["connection"] == "close"
        assert body["error"]["type"] == "invalid_request_error"
        assert is_closed_by_server(connection)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/health/live", 200), ("", 200), ("/v1/models", 401), ("/v1/models?x=http://y/health", 401)],
)
def test_a_target_in_absolute_form_is_the_same_as_its_path(live, path, status):
    server = live(api_keys=("k",))
    with connected(server.address) as connection:
        connection.sendall(head("GET", f"http://localhost{path}"))
        answer = http.client.HTTPResponse(connection)
        answer.begin()

        assert answer.status == status


CHUNKED = "Transfer-Encoding: chunked"
JSON = b'{"prompt": "x", "max_tokens": 1}'
SMUGGLED = head("GET", "/health/live")


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        ((f"Content-Length: {len(JSON)}", CHUNKED), b"0\r\n\r\n"),
        ((CHUNKED, "Content-Length: 4"), b"1d\r\n" + JSON),
        ((f"Content-Length: {len(JSON)}", "Content-Length: 5"), JSON),
        ((f"Content-Length: {len(JSON)}, 5",), JSON),
        ((f"Content-Length: +{len(JSON)}",), JSON),
        (("Content-Length: -1",), JSON),
        ((f"Content-Length: {hex(len(JSON))}",), JSON),
        (("Content-Length: 2_9",), JSON),
        ((f"Content-Length: {10**30}",), JSON),
        (("Transfer-Encoding: identity, chunked",), b"0\r\n\r\n"),
        (("Transfer-Encoding: xchunked",), b"0\r\n\r\n"),
        (("Transfer-Encoding: gzip, chunked",), b"0\r\n\r\n"),
        ((CHUNKED, "Transfer-Encoding: identity"), b"0\r\n\r\n"),
        (("Transfer-Encoding : chunked",), b"0\r\n\r\n"),
        (("Transfer-Encoding: \x0bchunked",), b"0\r\n\r\n"),
        ((f"X: a\rContent-Length: 5\r\nContent-Length: {len(JSON)}",), JSON),
        (("X: a\0b", f"Content-Length: {len(JSON)}"), JSON),
        ((CHUNKED,), b"%x\n" % len(JSON) + JSON + b"\n0\n\n"),
        ((CHUNKED,), b"-1\r\n" + JSON + b"\r\n0\r\n\r\n"),
        ((CHUNKED,), b"0x1d\r\n" + JSON + b"\r\n0\r\n\r\n"),
        ((CHUNKED,), b"1d;a=\nb\r\n" + JSON + b"\r\n0\r\n\r\n"),
        ((CHUNKED,), b"1d;a=" + b"b" * 70_000 + b"\r\n" + JSON + b"\r\n0\r\n\r\n"),
        ((CHUNKED,), b"1d\r\n" + JSON + b"\r\n0\r\n" + b"X: y\r\n" * 10_000 + b"\r\n"),
        (("Transfer-Encoding:\r\n chunked",), b"0\r\n\r\n"),
        (("X: a\r\n\tb", f"Content-Length: {len(JSON)}"), JSON),
        ((f"X: a\nContent-Length: {len(JSON)}",), JSON),
        ((f"Content-Length: {len(JSON)}\n",), JSON),
    ],
)
def test_a_request_whose_end_can_be_read_in_two_ways_carries_no_second_one(live, lines, body):
    server = live(api_keys=("k",))
    with connected(server.address) as connection:
        connection.sendall(head("POST", "/v1/completions", KEY, *lines) + body + SMUGGLED)
        answer = bytearray()
        with suppress(ConnectionError):
            while piece := connection.recv(1 << 16):
                answer += piece

    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 "))


def test_no_other_protocol_is_switched_to(live):
    server = live()
    websocket = ("Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13")
    for lines in (websocket, ("Upgrade: h2c", "HTTP2-Settings: AAMAAABk")):
        with connected(server.address) as connection:
            connection.sendall(head("GET", "/v1/realtime", "Connection: Upgrade", *lines))

            assert answer_of(connection)[0] == 404
    with connected(server.address) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

        assert is_closed_by_server(connection)


DEEP = 60_000
UNREADABLE = [
    b"[" * DEEP, b'{"prompt":' * DEEP, b'{"prompt": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    b'{"prompt": "x", "seed": ' + b"9" * 100_000 + b"}",
    b'{"prompt": "x", "seed": -' + b"9" * 4_301 + b"}",
    b'{"prompt": "x", "temperature": 1' + b"0" * 400 + b"}",
    b'{"prompt": "x", "max_tokens": 1e999999}',
    *(b'{"prompt": "x", "%b": "\\ud800"}' % each for each in (b"user", b"model", b"cache_salt")),
    b'{"prompt": "\\udc00\\ud800"}', b'{"prompt": "\xed\xa0\x80"}', b'{"\\ud800": 1}',
    b'{"prompt": "x"} {"prompt": "y"}', b'\xef\xbb\xbf{"prompt": "x"}',
    '{"prompt": "x"}'.encode("utf-16"), b'{"prompt": "x",}', b"{'prompt': 'x'}",
]  # fmt: skip


def test_json_that_breaks_parsers_is_refused_on_a_connection_that_goes_on(live):
    server = live()
    with closing(http.client.HTTPConnection(*server.address, timeout=120)) as connection:
        for body in [*UNREADABLE, b'{"prompt": "x", "max_tokens": 9, "max_tokens": 1}']:
            kind = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", body, kind)
            answer = connection.getresponse()
            said = json.loads(answer.read())

            assert answer.status == (400 if body in UNREADABLE else 200), body[:80]
    assert said["usage"]["completion_tokens"] == 1  # the last of two of a name counts


def test_the_host_of_an_absolute_target_counts_and_not_the_header(live):
    server = live()
    with connected(server.address) as connection:
        connection.sendall(head("GET", "http://evil.test/v1/models"))

        assert answer_of(connection)[0] == 403


def test_no_request_imports_a_module_or_opens_a_file(live):
    server = live()
    before = set(sys.modules)
    opened = []
    sys.addaudithook(lambda name, args: opened.append(args[0]) if name == "open" else None)

    for method, path, body in [
        ("GET", "/", None), ("GET", "/page/app.js", None), ("GET", "/metrics", None),
        ("GET", "/openapi.json", None), ("GET", "/nothing", None), ("GET", "/docs", None),
        ("POST", "/v1/completions", {"prompt": "x" * 200, "max_tokens": 2, "logprobs": 2}),
        ("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2, "stream": True}),
        ("POST", "/v1/completions", {"prompt": 3}),
        ("POST", "/v1/chat/completions",
         {"messages": [{"role": "user", "content": "x" * 99}], "max_tokens": 2, "logprobs": True}),
    ]:  # fmt: skip
        assert ask(server.address, method=method, path=path, body=body)[0] < 500

    assert set(sys.modules) - before <= OF_THE_CLIENT
    # FastAPI looks at the source of a route, and does without where it cannot.
    assert not [name for name in opened if not str(name).endswith(".py")]
