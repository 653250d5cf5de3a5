"""Handover of requests: simultaneous ones travel together, and none waits long."""

import asyncio

import pytest
from spaninfer_serving.api_server import handover
from spaninfer_serving.api_server.handover import Handover


def test_what_comes_in_the_same_turns_of_the_loop_is_handed_over_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handover, "monotonic", lambda: 0.0)  # a busy machine ends no wait
    handed_over: list[int] = []

    async def main() -> None:
        waiting = 0

        def hand_over() -> None:
            nonlocal waiting
            handed_over.append(waiting)
            waiting = 0

        handed = Handover(hand_over)

        async def ask(number: int) -> None:
            nonlocal waiting
            for _ in range(number % 3):
                await asyncio.sleep(0)
            waiting += 1
            handed.note()

        for _ in range(2):
            await asyncio.gather(*map(ask, range(9)))
            while waiting:
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(main(), 10))
    assert handed_over == [9, 9]


def test_while_requests_keep_coming_the_first_waits_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr(handover, "monotonic", lambda: now_s)
    waited: list[float] = []

    async def main() -> None:
        nonlocal now_s
        handed = Handover(lambda: waited.append(now_s))
        for _ in range(100):  # one in each turn of the loop, 0.5 ms each
            handed.note()
            await asyncio.sleep(0)
            now_s += 0.5e-3

    asyncio.run(asyncio.wait_for(main(), 10))
    assert len(waited) > 10
    gaps = [after - before for before, after in zip([0.0, *waited], waited, strict=False)]
    assert max(gaps) <= handover.MAX_WAIT_S + 1e-3
