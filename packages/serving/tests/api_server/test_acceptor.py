"""Several processes take connections from one listener, each as many as the others."""

import asyncio
import socket
from contextlib import ExitStack

import pytest
from spaninfer_serving.api_server.acceptor import MORE, Acceptor
from spaninfer_serving.figures import Figures, bytes_for


async def _until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def _acceptors(stack, listener, count):
    """Return acceptors as of so many processes: each has the listener under a number of its own."""
    memory = bytearray(bytes_for(count))
    figures = [Figures(memory, row) for row in range(count)]
    ends = [stack.enter_context(listener.dup()) for _ in figures]
    made = zip(ends, figures, strict=True)
    return figures, [Acceptor(end, asyncio.Protocol, each) for end, each in made]


@pytest.mark.parametrize("begun", [(0, 0, 0), (9, 0, 0)])
def test_connections_go_to_those_that_have_few(begun: tuple[int, ...]) -> None:
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
                acceptor.close()
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
            first.close()
            first.close()

    asyncio.run(asyncio.wait_for(work(), 120))
