import asyncio
import threading

import pytest
from spaninfer_serving import reading
from spaninfer_serving.reading import Readers
from spaninfer_serving.wire.errors import Problem


def test_a_small_body_is_read_where_it_is_and_a_large_one_in_a_thread():
    async def drive():
        readers = Readers()
        small = await readers.run(reading.IN_PLACE_BYTES, threading.get_ident)
        large = await readers.run(reading.IN_PLACE_BYTES + 1, threading.get_ident)
        return small, large

    small, large = asyncio.run(drive())

    assert small == threading.get_ident()
    assert large != threading.get_ident()


def test_the_event_loop_goes_on_while_a_body_is_read():
    async def drive():
        go_on = threading.Event()
        work = asyncio.ensure_future(Readers().run(1 << 20, lambda: go_on.wait(120)))
        await asyncio.sleep(0)
        go_on.set()  # by the loop, which would hang if it were the one to wait
        return await work

    assert asyncio.run(drive())


def test_too_many_large_bodies_are_refused_and_later_ones_are_not(monkeypatch):
    monkeypatch.setattr(reading, "MAX_WAITING", 2)

    async def drive():
        readers, go_on = Readers(), threading.Event()
        inside = [asyncio.ensure_future(readers.run(1 << 20, go_on.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Problem) as caught:
            await readers.run(1 << 20, go_on.wait)
        go_on.set()
        await asyncio.gather(*inside)
        return caught.value.status, await readers.run(1 << 20, lambda: "again")

    assert asyncio.run(drive()) == (429, "again")


def test_an_error_of_the_work_comes_back():
    def fails():
        raise Problem(400, "no")

    with pytest.raises(Problem, match="no"):
        asyncio.run(Readers().run(1 << 20, fails))
