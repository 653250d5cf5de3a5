"""Attacks over real sockets: what each may cost the server, and nobody else."""

import http.client
import json
import logging
import socket
import threading
from contextlib import closing, contextmanager, suppress

import pytest
from attacks import BODY, head, open_bodies, pipelining, posted, silent_connections, slow_reader
from spaninfer_serving import protocol
from spaninfer_serving.places import Places
from spaninfer_serving.protocol import BoundedProtocol

KEY = "Authorization: Bearer k"
READ_AT_ONCE = 1 << 18  # by asyncio


def ask(address, *lines, body=None, method="POST", path="/v1/completions"):
    """Return status, headers and body of the answer to one request."""
    with closing(http.client.HTTPConnection(*address, timeout=120)) as connection:
        headers = {"Content-Type": "application/json"}
        headers |= dict(line.split(": ", 1) for line in lines)
        data = None if method == "GET" else json.dumps(body or {"prompt": "x", "max_tokens": 1})
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


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


@pytest.mark.parametrize("path", ["/", "/health/live", "/v1/models"])
def test_requests_sent_without_end_pile_up_no_further_than_one_read(live, until, path):
    server = live(api_keys=("k",))
    kept = []

    def some_hundred_are_answered():
        kept.extend(len(each.conn.trailing_data[0]) for each in server.connections)
        return attack.num_received > 1 << 18

    with pipelining(server.address, path=path, num=2) as attack:
        until(some_hundred_are_answered)

    assert max(kept) <= 2 * READ_AT_ONCE


@pytest.mark.parametrize(
    "path", ["/health", "/health/live", "/", "/page/app.js", "/v1/completions", "/nothing"]
)
def test_bodies_of_strangers_take_no_room_from_those_with_a_key(live, until, path):
    server = live(api_keys=("k",), max_body_bytes=1 << 17)

    with open_bodies(server.address, path=path, num=80, size=1 << 17) as attack:
        until(lambda: attack.num_sent > 80 * (1 << 17) - 100)
        statuses = {ask(server.address, KEY)[0] for _ in range(5)}
        kept = sum(len(each.cycle.body) for each in server.connections if each.cycle)

    assert statuses == {200}
    assert kept <= 2 * READ_AT_ONCE


def test_the_rest_of_a_refused_body_is_thrown_away_to_an_end(live, monkeypatch):
    monkeypatch.setattr(protocol, "DISCARD_BYTES", 1 << 20)
    server = live(api_keys=("k",))
    with connected(server.address) as connection:
        connection.sendall(head("POST", "/v1/completions", f"Content-Length: {1 << 30}"))

        status, headers, body = answer_of(connection)

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
    with connected(server.address) as connection:
        connection.sendall(head("POST", "/health", "Content-Length: 9") + b"x")

        assert answer_of(connection)[0] == 405
        assert is_closed_by_server(connection)


def test_silent_connections_shut_nobody_out(live, until, caplog):
    server = live()
    places = next(iter(server.server.config.http_protocol_class.keywords.values()))
    places.num = 20

    with caplog.at_level(logging.WARNING), silent_connections(server.address, num=100) as attack:
        until(lambda: attack.num_refused > 300)
        statuses = [ask(server.address)[0] for _ in range(10)]

    assert statuses == [200] * 10
    said = [each.message for each in caplog.records if each.name == "spaninfer_serving.places"]
    assert said[0].startswith("all 20 places for connections are taken")
