import asyncio
import gc
import weakref
from time import sleep

import pytest
from assembled import VOCAB, answer, assert_spans_come_back, engine, text_of, wait_until
from checking import BlockedRunner
from spaninfer_engine import aio
from spaninfer_engine.aio import Alarm, AsyncEngine, _Wakeups
from spaninfer_engine.errors import EngineClosed, PromptTooLong, Unread
from spaninfer_engine.request.request import FinishReason, SamplingParams


async def read(outputs):
    return [output async for output in outputs]


def test_many_tasks_read_their_answers_at_the_same_time():
    async def main():
        async with AsyncEngine(engine(max_running=16)) as running:
            return await asyncio.gather(
                *(
                    read(running.generate([i, 1], SamplingParams(max_tokens=15, seed=i)))
                    for i in range(50)
                )
            )

    answers = asyncio.run(main())

    for number, outputs in enumerate(answers):
        expected = answer([number, 1], number, 15)
        assert [token for output in outputs for token in output.token_ids] == expected
        assert outputs[-1].finish_reason is not None


def test_text_prompts_and_several_choices_arrive_whole():
    async def main():
        async with AsyncEngine(engine()) as running:
            return await read(running.generate("abc", SamplingParams(max_tokens=8, seed=2, n=3)))

    outputs = asyncio.run(main())

    for index in range(3):
        text = "".join(output.text for output in outputs if output.index == index)
        assert text == text_of(answer([0, 1, 2], 2 + index, 8))


def test_a_cancelled_task_stops_its_request():
    runner = BlockedRunner(4, (100,), vocab=VOCAB)

    async def main(running):
        task = asyncio.create_task(read(running.generate([1], SamplingParams(ignore_eos=True))))
        await asyncio.to_thread(runner.wait_for_step)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with engine(runner) as synchronous:
        asyncio.run(main(AsyncEngine(synchronous)))
        runner.go()
        synchronous.sync()
        wait_until(lambda: synchronous.stats().finished[FinishReason.STOPPED] == 1)
        assert synchronous.stats().generated_tokens <= 1


def test_an_iterator_left_early_gives_its_spans_back_within_two_steps():
    runner = BlockedRunner(4, (100,), vocab=VOCAB, held=5)
    endless = SamplingParams(ignore_eos=True)

    async def leave_one_of_two(running):
        left, other = running.start([1], endless), running.start([2], endless)
        await anext(left)
        await asyncio.to_thread(runner.wait_for_step)
        left.close()
        num_steps = len(runner.steps)
        runner.go()
        await read(other)
        return num_steps

    with engine(runner) as synchronous:
        num_steps = asyncio.run(leave_one_of_two(AsyncEngine(synchronous)))
        assert_spans_come_back(synchronous)

    later = [{part.seq_id for part in plan.slices} for plan in runner.steps[num_steps:]]
    assert sum(1 in step for step in later) <= 2
    assert sum(2 in step for step in later) > 5


def test_refusals_are_raised_before_the_first_element():
    async def main():
        running = AsyncEngine(engine())
        with pytest.raises(PromptTooLong):
            await anext(running.generate([1] * 300))
        await running.close()
        with pytest.raises(EngineClosed):
            await anext(running.generate([1]))

    asyncio.run(main())


def test_an_event_loop_that_is_gone_does_not_disturb_the_others():
    runner = BlockedRunner(4, (100,), vocab=VOCAB)

    async def main(running):
        outputs = running.generate([1], SamplingParams(max_tokens=5))
        asyncio.get_running_loop().create_task(anext(outputs))
        await asyncio.to_thread(runner.wait_for_step)

    with engine(runner) as synchronous:
        asyncio.run(main(AsyncEngine(synchronous)))
        runner.go()

        assert list(
            synchronous.generate([1, 2], SamplingParams(max_tokens=9, seed=1)).token_ids
        ) == (answer([1, 2], 1, 9))


def test_what_is_read_at_the_end_comes_in_one_output_per_choice_however_long_it_is(monkeypatch):
    monkeypatch.setattr(aio, "MAX_UNREAD", 10)

    runner = BlockedRunner(4, (100,), vocab=VOCAB, held=20)

    async def main():
        async with AsyncEngine(engine(runner)) as running:
            asked = SamplingParams(max_tokens=30, seed=2, n=2, ignore_eos=True)
            reading = asyncio.ensure_future(read(running.start([1, 2], asked, at_end=True)))
            await asyncio.to_thread(runner.wait_for_step)
            await asyncio.to_thread(sleep, 0.05)  # in which an early output would be read
            runner.go()
            return await reading

    outputs = asyncio.run(main())

    assert sorted(output.index for output in outputs) == [0, 1]
    for output in outputs:
        assert output.usage.output_len == len(output.token_ids) == 30
        assert output.text == text_of(output.token_ids)


def test_a_request_that_its_task_does_not_read_is_stopped(monkeypatch):
    monkeypatch.setattr(aio, "MAX_UNREAD", 10)

    async def main(running):
        stream = running.start([1], SamplingParams(ignore_eos=True))
        await asyncio.to_thread(running.engine.sync)
        with pytest.raises(Unread, match="more than 10 tokens"):
            await read(stream)

    # A context of 200 tokens may end before the task has its turn, on a busy machine.
    with engine(num_spans=20_000, max_len=80_000) as synchronous:
        asyncio.run(main(AsyncEngine(synchronous)))
        wait_until(lambda: synchronous.stats().finished[FinishReason.STOPPED] == 1)
        assert_spans_come_back(synchronous)


@pytest.mark.parametrize("at_end", [False, True])
def test_a_request_that_has_finished_is_forgotten_without_the_garbage_collector(at_end):
    async def main(running):
        stream = running.start([1], SamplingParams(max_tokens=5), at_end=at_end)
        known = weakref.ref(stream.handle)
        await read(stream)
        return known

    gc.disable()
    try:
        with engine() as synchronous:
            known = asyncio.run(main(AsyncEngine(synchronous)))
            wait_until(lambda: known() is None)
    finally:
        gc.enable()


def test_what_came_for_many_streams_wakes_the_loop_once():
    async def main():
        loop = asyncio.get_running_loop()
        alarms = [Alarm() for _ in range(20)]
        wakeups, calls = _Wakeups(loop), []
        call = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda act, *more, **k: (
            calls.append(act),
            call(act, *more, **k),
        )
        wakers = [wakeups.waker(alarm) for alarm in alarms]
        for _ in range(3):
            waiting = [alarm.set() for alarm in alarms]
            for wake in wakers:  # here, so that the loop cannot run in between
                wake()
            await asyncio.gather(*waiting)
            for alarm in alarms:
                alarm.is_rung = False
        return calls

    calls = asyncio.run(main())

    assert sum(act.__self__.__class__ is _Wakeups for act in calls if hasattr(act, "__self__")) == 3


def test_a_wake_up_after_the_loop_is_closed_is_ignored():
    loop = asyncio.new_event_loop()
    wake = _Wakeups(loop).waker(Alarm())
    loop.close()

    wake()
