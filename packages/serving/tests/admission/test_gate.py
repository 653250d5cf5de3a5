import asyncio
from itertools import pairwise

import pytest
from spaninfer_serving.admission.fair_queue import Client
from spaninfer_serving.admission.gate import MAX_GROWTH, SHARED_ROUNDS, SHARED_S, AdmissionGate

ANN, BOB = Client("ann", "1"), Client("bob", "1")
NEVER_S = 3600.0


async def entered(gate, log, name, client, cost=1):
    await gate.enter(client, cost)
    log.append(name)


def driven(drive):
    return asyncio.run(asyncio.wait_for(drive(), 120))


def test_who_comes_alone_enters_at_once():
    async def drive():
        gate = AdmissionGate(NEVER_S)
        entering = gate.enter(ANN)
        try:
            entering.send(None)  # a coroutine that waits for nothing ends at its first step
        except StopIteration:
            return True

    assert driven(drive)


def test_of_a_burst_one_enters_per_round_of_the_loop():
    async def drive():
        gate, log, found = AdmissionGate(), [], []
        tasks = [asyncio.ensure_future(entered(gate, log, i, ANN)) for i in range(8)]
        while len(log) < len(tasks):
            await asyncio.sleep(0)
            found.append(len(log))
        return log, found

    log, found = driven(drive)

    assert log == list(range(8))
    assert all(after - before <= 1 for before, after in pairwise(found))


def test_where_accounts_share_the_loop_rounds_without_an_entrance_come_in_between():
    """For a while: later, one enters in each round again."""

    async def drive():
        loop = asyncio.get_running_loop()
        gate, log, ahead_s = AdmissionGate(), [], 0.0
        real, loop.time = loop.time, lambda: real() + ahead_s
        await gate.enter(BOB)
        rounds = []
        for later_s in (0.0, 2 * SHARED_S):
            ahead_s = later_s
            log.clear()
            tasks = [asyncio.ensure_future(entered(gate, log, i, ANN)) for i in range(8)]
            found = []
            while len(log) < len(tasks):
                await asyncio.sleep(0)
                found.append(len(log))
            rounds.append([found.count(number) for number in range(2, 8)])
        return rounds

    assert driven(drive) == [[SHARED_ROUNDS] * 6, [1] * 6]


@pytest.mark.parametrize("num_rounds", range(2 * SHARED_ROUNDS))
def test_another_account_does_not_wait_while_one_rests(num_rounds):
    async def drive():
        gate, log = AdmissionGate(), []
        await gate.enter(BOB)
        burst = [asyncio.ensure_future(entered(gate, log, number, ANN)) for number in range(20)]
        while len(log) < 3:  # the second enters SHARED_ROUNDS behind the first
            await asyncio.sleep(0)
        for _ in range(num_rounds):
            await asyncio.sleep(0)
        bob, rounds = asyncio.ensure_future(entered(gate, log, "bob", BOB)), 0
        while not bob.done():
            rounds += 1
            await asyncio.sleep(0)
        await asyncio.gather(*burst)
        return rounds

    assert driven(drive) <= 4  # its first step, a round behind ann, its last step


def test_who_sends_one_request_enters_in_the_middle_of_anothers_burst():
    async def drive():
        gate, log = AdmissionGate(), []
        tasks = [asyncio.ensure_future(entered(gate, log, i, ANN)) for i in range(50)]
        tasks.append(asyncio.ensure_future(entered(gate, log, "bob", BOB)))
        await asyncio.gather(*tasks)
        return log

    assert driven(drive).index("bob") <= 2


def test_what_costs_less_enters_first():
    async def drive():
        gate, log = AdmissionGate(), []
        await asyncio.gather(
            entered(gate, log, "first", ANN),
            entered(gate, log, "long", ANN, 30),
            entered(gate, log, "short", BOB),
        )
        return log

    assert driven(drive) == ["first", "short", "long"]


def test_who_leaves_takes_nobodys_turn():
    async def drive():
        gate, log = AdmissionGate(), []
        first, leaving, staying = (
            asyncio.ensure_future(entered(gate, log, name, ANN))
            for name in ("first", "left", "stayed")
        )
        await first
        leaving.cancel()
        await staying
        await gate.enter(ANN)  # and it still turns
        return log

    assert driven(drive) == ["first", "stayed"]


def test_with_a_pause_the_rounds_of_the_loop_do_not_count():
    async def drive():
        gate, log = AdmissionGate(NEVER_S), []
        await gate.enter(ANN)
        waiting = asyncio.ensure_future(entered(gate, log, "second", BOB))
        for _ in range(100):
            await asyncio.sleep(0)
        waiting.cancel()
        return log

    assert driven(drive) == []


def test_pauses_grow_while_somebody_waits_and_are_short_again_behind_that():
    pauses = []

    async def drive():
        loop = asyncio.get_running_loop()
        real, loop.call_later = loop.call_later, lambda s, *call: (pauses.append(s), real(0, *call))
        gate, log = AdmissionGate(2.0), []
        await asyncio.gather(*(entered(gate, log, number, ANN) for number in range(30)))
        while gate._shut_by is not None:
            await asyncio.sleep(0)
        await gate.enter(BOB)
        loop.call_later = real

    driven(drive)

    assert pauses[0] == pauses[-1] == 2.0
    assert all(before < after for before, after in pairwise(pauses[:15]))
    assert max(pauses) == pauses[-2] == 2.0 * MAX_GROWTH


def test_a_loop_that_ended_keeps_no_connection_out_of_the_next():
    gate = AdmissionGate(NEVER_S)

    async def passed():
        await asyncio.wait_for(gate.enter(ANN), 120)
        return True

    assert [asyncio.run(passed()) for _ in range(3)] == [True] * 3
