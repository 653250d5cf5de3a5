import asyncio
import os
import sys
import threading

import pytest
from spaninfer_serving.admission.fair_queue import Client
from spaninfer_serving.requests import parse_pool
from spaninfer_serving.requests.parse_pool import LANE_BYTES, ClientLeft, ParsePool
from spaninfer_serving.wire.errors import Problem

SMALL, MIDDLE, LARGE = 2 << 10, LANE_BYTES[0] + 1, LANE_BYTES[1] + 1
ANN = Client("ann", "1")
GIVE_UP_S = 120


def driven(drive, max_requests=100):
    async def main():
        return await asyncio.wait_for(drive(ParsePool(max_requests)), GIVE_UP_S)

    return asyncio.run(main())


def started(pool, num_bytes, work, client=ANN):
    return asyncio.ensure_future(pool.run(num_bytes, client, work))


def waits_for(event, *begun):
    """Return work that says that it has begun, and then waits."""

    def work(check):
        for each in begun:
            each.set()
        assert event.wait(GIVE_UP_S)
        check()

    return work


async def heard(event):
    assert await asyncio.to_thread(event.wait, GIVE_UP_S)


async def check_refused(pool, why):
    with pytest.raises(Problem, match=why) as caught:
        await pool.run(LARGE, ANN, pytest.fail)
    assert caught.value.status == 429


def test_the_event_loop_goes_on_while_a_body_is_parsed():
    async def drive(pool):
        go_on = threading.Event()
        work = started(pool, LARGE, lambda _: go_on.wait(GIVE_UP_S))
        await asyncio.sleep(0)
        go_on.set()  # by the loop, which would hang if it were the one to wait
        return await work

    assert driven(drive)


def test_a_body_waits_for_none_of_another_order_of_size():
    async def drive(pool):
        go_on = threading.Event()
        long = [started(pool, size, waits_for(go_on)) for size in [LARGE, MIDDLE] * 40]
        answer = await pool.run(SMALL, ANN, lambda _: "short")
        waiting = sum(not each.done() for each in long)
        go_on.set()
        await asyncio.gather(*long)
        return answer, waiting

    assert driven(drive) == ("short", 80)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no such order")
def test_the_longer_a_body_the_lower_the_priority_of_its_thread():
    def nice(_):
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    async def drive(pool):
        return [await pool.run(size, ANN, nice) for size in (SMALL, MIDDLE, LARGE)]

    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert driven(drive) == [min(ours + more, 19) for more in (0, 5, 10)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == ours


def test_bodies_of_one_order_of_size_are_parsed_one_at_a_time():
    together, most = 0, 0

    def work(_):
        nonlocal together, most
        together += 1
        most = max(most, together)
        threading.Event().wait(1e-3)
        together -= 1

    async def drive(pool):
        await asyncio.gather(*(started(pool, LARGE, work) for _ in range(20)))

    driven(drive)
    assert most == 1


def test_work_of_a_client_that_left_is_not_begun():
    async def drive(pool):
        go_on, begun = threading.Event(), threading.Event()
        first = started(pool, LARGE, waits_for(go_on))
        left = started(pool, LARGE, lambda _: begun.set())
        await asyncio.sleep(0)
        left.cancel()
        go_on.set()
        await first
        await pool.run(LARGE, ANN, lambda _: None)
        return begun.is_set()

    assert driven(drive) is False


def test_work_that_has_begun_ends_at_its_next_stage_when_its_client_leaves():
    async def drive(pool):
        begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

        def work(check):
            begun.set()
            go_on.wait(GIVE_UP_S)
            try:
                check()
            except ClientLeft:
                ended.set()
                raise

        leaving = started(pool, LARGE, work)
        await heard(begun)
        leaving.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await heard(ended)
        return await pool.run(LARGE, ANN, lambda _: "the next")

    assert driven(drive) == "the next"


def test_requests_are_counted_and_those_that_left_are_not():
    async def drive(pool):
        go_on = threading.Event()
        inside = [started(pool, SMALL, waits_for(go_on)) for _ in range(3)]
        await asyncio.sleep(0)
        await check_refused(pool, r"3 requests are being parsed.*--max-waiting")
        inside[-1].cancel()
        await asyncio.sleep(0)
        another = started(pool, SMALL, waits_for(go_on))
        go_on.set()
        await asyncio.gather(*inside[:-1], another)
        return await pool.run(SMALL, ANN, lambda _: "again")

    assert driven(drive, max_requests=3) == "again"


def test_bytes_are_counted_lane_by_lane(monkeypatch):
    monkeypatch.setattr(parse_pool, "WAITING_BYTES", 2 * LARGE)

    async def drive(pool):
        go_on = threading.Event()
        inside = [started(pool, LARGE, waits_for(go_on)) for _ in range(2)]
        await asyncio.sleep(0)
        await check_refused(pool, "KiB may wait")
        short = await pool.run(SMALL, ANN, lambda _: "short")
        inside[-1].cancel()  # gives its bytes back at once
        await asyncio.sleep(0)
        another = started(pool, LARGE, waits_for(go_on))
        go_on.set()
        await asyncio.gather(inside[0], another)
        return short

    assert driven(drive) == "short"


def test_a_body_larger_than_all_that_may_wait_is_parsed_alone(monkeypatch):
    monkeypatch.setattr(parse_pool, "WAITING_BYTES", 1)

    assert driven(lambda pool: pool.run(LARGE, ANN, lambda _: "alone")) == "alone"


def test_an_error_of_the_work_comes_back_and_the_next_is_parsed():
    def fails(_):
        raise Problem(400, "no")

    async def drive(pool):
        with pytest.raises(Problem, match="no"):
            await pool.run(LARGE, ANN, fails)
        return await pool.run(LARGE, ANN, lambda _: "yes")

    assert driven(drive) == "yes"
