"""Bursts over real sockets: admitted a piece at a time, fair among clients."""

import http.client
import socket
import threading
from contextlib import ExitStack, contextmanager

import pytest
from attacks import head
from spaninfer_serving.http.acceptor import FIRST_BYTES
from spaninfer_serving.http.protocol import BoundedProtocol
from spaninfer_serving.middleware import guard

PIECE = 1 << 18  # what asyncio reads at once
SLICE = 1 << 16  # what the system takes before anybody reads
MODELS = head("GET", "/v1/models", "Authorization: Bearer one")


@pytest.fixture
def stopped():
    """What stops the event loop of a server for a block, so that what is sent comes together."""

    @contextmanager
    def stop(server):
        begun, go_on = threading.Event(), threading.Event()

        def hold():
            begun.set()
            assert go_on.wait(120)

        loop = server.server.acceptors[0].loop
        loop.call_soon_threadsafe(hold)
        assert begun.wait(120)
        try:
            yield
        finally:
            go_on.set()

    return stop


@pytest.fixture
def connections(until):
    """What opens connections that the server has accepted."""
    with ExitStack() as stack:

        def connect(server, num):
            made = [
                stack.enter_context(socket.create_connection(server.address, timeout=120))
                for _ in range(num)
            ]
            until(lambda: server.num_connections >= num)
            return made

        yield connect


def status_of(connection):
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def test_a_client_with_one_request_enters_in_the_middle_of_anothers_burst(
    live, connections, stopped, monkeypatch
):
    order = []
    made = BoundedProtocol.on_response_complete

    def completed(self):
        order.append(dict(self.cycle.scope["headers"])[b"authorization"].decode())
        made(self)

    monkeypatch.setattr(BoundedProtocol, "on_response_complete", completed)
    server = live(api_keys=("many", "one"))
    opened = connections(server, 65)

    with stopped(server):
        for connection in opened[:-1]:
            connection.sendall(MODELS.replace(b"one", b"many"))
        opened[-1].sendall(MODELS)
    statuses = {status_of(connection) for connection in opened}

    assert statuses == {200}
    assert order.index("Bearer one") <= 3


def test_of_long_bodies_that_come_together_one_is_read_on_per_round_of_the_loop(
    live, connections, stopped, until, monkeypatch
):
    rounds, is_over = [0], threading.Event()
    taken = BoundedProtocol.data_received

    def data_received(self, data):
        rounds[-1] += len(data)
        taken(self, data)

    def count(loop):
        rounds.append(0)
        if not is_over.is_set():
            loop.call_soon(count, loop)

    monkeypatch.setattr(BoundedProtocol, "data_received", data_received)
    size = 1 << 21
    server = live(max_body_bytes=size)
    opened = connections(server, 16)
    lines = ("Content-Type: application/json", f"Content-Length: {size}")
    long = head("POST", "/v1/completions", *lines) + b" " * size
    sent = [0] * len(opened)

    def send(number):
        for start in range(0, len(long), SLICE):
            opened[number].sendall(long[start : start + SLICE])
            sent[number] += SLICE

    senders = [threading.Thread(target=send, args=(number,)) for number in range(len(opened))]
    with stopped(server):
        for sender in senders:
            sender.start()
        until(lambda: all(sent))
        loop = server.server.acceptors[0].loop
        loop.call_soon_threadsafe(count, loop)
    for sender in senders:
        sender.join()
    statuses = {status_of(connection) for connection in opened}
    is_over.set()

    assert statuses == {400}  # spaces are no JSON
    begun = next(number for number, num_bytes in enumerate(rounds) if num_bytes > 0)
    assert sum(rounds) == 16 * (len(long) - FIRST_BYTES)
    assert max(rounds[begun + 4 :]) <= 3 * PIECE  # behind the first piece of each


def test_strangers_wait_for_each_other_and_for_nobody_else(live, connections, monkeypatch):
    monkeypatch.setattr(guard, "PUBLIC_PAUSE_S", 3600.0)
    server = live(api_keys=("one",))
    stranger, other, member = connections(server, 3)

    stranger.sendall(head("GET", "/health/live"))
    assert status_of(stranger) == 200
    other.sendall(head("GET", "/"))
    stranger.sendall(head("GET", "/v1/models"))
    member.sendall(MODELS)

    assert status_of(member) == 200
    for each in (stranger, other):
        each.settimeout(0.2)
        with pytest.raises(TimeoutError):
            each.recv(1)


@pytest.mark.parametrize(("num_bytes", "status"), [(1 << 14, 200), ((1 << 14) + 1, 431)])
def test_a_head_is_too_large_by_its_size_however_it_arrives(
    live, connections, stopped, num_bytes, status
):
    server = live()
    in_pieces, together = connections(server, 2)
    padding = num_bytes - len(head("GET", "/v1/models", "X: "))
    whole = head("GET", "/v1/models", "X: " + "x" * padding)

    with stopped(server):
        together.sendall(whole)
    for start in range(0, num_bytes, 1000):
        in_pieces.sendall(whole[start : start + 1000])

    assert len(whole) == num_bytes
    assert [status_of(together), status_of(in_pieces)] == [status, status]
