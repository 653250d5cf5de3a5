"""Fair acceptance of connections, among clients and among processes on one listener."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise

import pytest
from spaninfer_serving.admission.fair_queue import Client
from spaninfer_serving.http import acceptor as acceptor_module
from spaninfer_serving.http.acceptor import MORE, Acceptor, Entrance
from spaninfer_serving.http.connection_slots import ConnectionSlots
from spaninfer_serving.observability.figures import Figures, bytes_for


async def _until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def _acceptor(listener, figures, make, slots=None) -> Acceptor:
    """Return an acceptor whose connections say their account in their first byte."""

    def client_of(first, address):
        return Client(first[:1].decode(), str(address[1]))

    slots = slots or ConnectionSlots(1000)
    return Acceptor(listener, Entrance(make, client_of, lambda: 0, slots), figures)


def _acceptors(stack, listener, count):
    """Return acceptors as of so many processes: each has the listener under a number of its own."""
    memory = bytearray(bytes_for(count))
    figures = [Figures(memory, row) for row in range(count)]
    ends = [stack.enter_context(listener.dup()) for _ in figures]
    made = zip(ends, figures, strict=True)
    return figures, [_acceptor(end, each, lambda _: asyncio.Protocol()) for end, each in made]


@pytest.mark.parametrize("begun", [(0, 0, 0), (9, 0, 0)])
def test_connections_go_to_those_that_have_few(
    begun: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a slow machine one that has more would look again before the others have taken theirs.
    monkeypatch.setattr(acceptor_module, "WAIT_S", 0.1)

    async def work() -> None:
        with ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
            figures, acceptors = _acceptors(stack, listener, len(begun))
            for each, num, acceptor in zip(figures, begun, acceptors, strict=True):
                each.num_connections = num
                acceptor.open()
            for _ in range(18):
                stack.enter_context(socket.create_connection(listener.getsockname()))
                await asyncio.sleep(0)
            await _until(lambda: sum(each.num_connections for each in figures) == 18 + sum(begun))
            for acceptor in acceptors:
                await acceptor.close()
            counts = [each.num_connections for each in figures]
            assert max(counts) - min(counts) <= MORE + 1

    asyncio.run(asyncio.wait_for(work(), 120))


def test_one_that_has_more_than_all_others_still_answers_where_they_do_not() -> None:
    async def work() -> None:
        with ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            figures, (first, _) = _acceptors(stack, listener, 2)
            figures[0].num_connections = 50
            first.open()  # the other one is being started anew
            with socket.create_connection(listener.getsockname()):
                await _until(lambda: figures[0].num_connections == 51)
            await first.close()
            await first.close()

    asyncio.run(asyncio.wait_for(work(), 120))


class Entered(asyncio.Protocol):
    """Notes what had been read of a connection when it entered."""

    def __init__(self, entered: list[bytes], first: bytes) -> None:
        entered.append(first)


@dataclass
class Hall:
    """An acceptor in front of protocols that note what entered."""

    address: tuple[str, int]
    acceptor: Acceptor
    figures: Figures
    entered: list[bytes]

    async def has_taken(self, count: int) -> None:
        """Wait until so many connections have been taken, whatever became of them."""
        await _until(lambda: self.figures.num_connections == count)

    async def has_none_left(self) -> None:
        """Wait until there is no connection."""
        await _until(lambda: self.acceptor.num_connections == 0)


def _in_hall(work: Callable[[Hall, ExitStack], Awaitable[None]], num_places: int = 1000) -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=600) as listener, ExitStack() as stack:
            entered: list[bytes] = []
            figures, slots = Figures.own(), ConnectionSlots(num_places)
            acceptor = _acceptor(listener, figures, lambda first: Entered(entered, first), slots)
            acceptor.open()
            await work(Hall(listener.getsockname(), acceptor, figures, entered), stack)
            await acceptor.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def _connect(hall: Hall, stack: ExitStack, *said: bytes) -> list[socket.socket]:
    """Return connections, of which each has said this."""
    made = []
    for each in said:
        made.append(stack.enter_context(socket.create_connection(hall.address, timeout=30)))
        made[-1].sendall(each)
    return made


def test_one_client_enters_before_nearly_all_of_a_burst_that_came_first() -> None:
    async def work(hall: Hall, stack: ExitStack) -> None:
        _connect(hall, stack, *[b"burst"] * 200, b"ordinary")
        await _until(lambda: len(hall.entered) == 201)
        assert hall.entered.index(b"ordinary") < 20

    _in_hall(work)


def test_one_connection_enters_per_round_of_the_loop() -> None:
    async def work(hall: Hall, stack: ExitStack) -> None:
        _connect(hall, stack, *[b"burst"] * 50)
        rounds = []
        while len(hall.entered) < 50:
            rounds.append(len(hall.entered))
            await asyncio.sleep(0)
        assert max(after - before for before, after in pairwise(rounds)) == 1

    _in_hall(work)


def test_a_connection_that_says_nothing_does_not_enter_and_gives_way_where_places_are_few() -> None:
    async def work(hall: Hall, stack: ExitStack) -> None:
        first, *_, last = _connect(hall, stack, b"", b"", b"", b"")
        await hall.has_taken(4)
        assert hall.acceptor.num_connections == 3
        assert first.recv(1) == b""
        last.sendall(b"late")
        await _until(lambda: hall.entered == [b"late"])

    _in_hall(work, num_places=3)


def test_a_connection_whose_client_has_left_is_forgotten() -> None:
    async def work(hall: Hall, stack: ExitStack) -> None:
        [silent] = _connect(hall, stack, b"")
        await hall.has_taken(1)
        silent.close()
        await hall.has_none_left()
        assert hall.entered == []

    _in_hall(work)


def test_a_silent_connection_is_closed_when_a_head_is_overdue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptor_module, "HEAD_S", 0.05)

    async def work(hall: Hall, stack: ExitStack) -> None:
        [silent] = _connect(hall, stack, b"")
        await hall.has_taken(1)
        await hall.has_none_left()
        assert silent.recv(1) == b""

    _in_hall(work)


def test_closing_lets_those_in_that_have_sent_something() -> None:
    async def work(hall: Hall, stack: ExitStack) -> None:
        *_, silent = _connect(hall, stack, b"a", b"b", b"c", b"")
        await hall.has_taken(4)
        await hall.acceptor.close()
        assert sorted(hall.entered) == [b"a", b"b", b"c"]
        assert silent.recv(1) == b""

    _in_hall(work)
