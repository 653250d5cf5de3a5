"""The engine loop under many threads, stops, failures and closing: no caller hangs or leaks."""

import gc
import random
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from assembled import (
    VOCAB,
    answer,
    assert_spans_come_back,
    engine,
    text_of,
    wait_for_other_engines,
    wait_until,
)
from checking import BlockedRunner, CheckingRunner, DeviceRunner, alone
from spaninfer_engine.core.stats import EngineState
from spaninfer_engine.errors import EngineClosed, QueueFull, StepTimeout
from spaninfer_engine.request.request import FinishReason, Placement, SamplingParams, Status


def checking(runner_class=CheckingRunner, num_spans=100):
    return runner_class(4, (num_spans,), vocab=VOCAB)


@pytest.fixture(params=[CheckingRunner, DeviceRunner], ids=["one by one", "overlapped"])
def kind(request):
    """A runner that computes when it is asked for the outcome, and one that does so by itself."""
    return request.param


def failing(kind, may_fail):
    """Return a runner that fails in step 3, as a device does that ran out of memory, but not
    before the event `may_fail` is set.
    """

    class FailingRunner(kind):
        def run_next(self):
            if self.in_flight[0][0].number == 3:
                assert may_fail.wait(120)
                raise MemoryError("the device is full")
            return super().run_next()

    return checking(FailingRunner)


def threads_of_engines():
    return {each for each in threading.enumerate() if each.name.startswith("spaninfer-")}


def test_two_hundred_requests_from_many_threads_with_random_stops_lose_nothing(kind):
    chance = random.Random(1)
    cases = [
        (
            [chance.randrange(VOCAB) for _ in range(chance.randrange(1, 30))],
            chance.random() < 0.3,
        )
        for _ in range(200)
    ]

    def ask(running, number, prompt, is_stopped):
        sampling = SamplingParams(max_tokens=25, seed=number)
        handle, queue = running.start_request(prompt, sampling)
        tokens, last = [], None
        for output in queue:
            tokens += output.token_ids
            last = output
            if is_stopped and len(tokens) > 5:
                running.stop(handle)
        expected = answer(prompt, number, 25)
        if last.finish_reason is FinishReason.STOPPED:
            assert is_stopped
            assert tokens == expected[: len(tokens)]
        else:
            assert tokens == expected
        return last.finish_reason

    with engine(checking(kind, 60), num_spans=60, max_running=16) as running:
        with ThreadPoolExecutor(32) as threads:
            reasons = list(
                threads.map(lambda item: ask(running, item[0], *item[1]), enumerate(cases))
            )
        running.sync()

        assert len(reasons) == 200
        wait_until(lambda: sum(running.stats().finished.values()) == 200)
        assert_spans_come_back(running)


def test_a_step_is_started_before_the_outcome_of_the_one_in_front_is_asked_for():
    asked = []

    class Watched(DeviceRunner):
        def start(self, plan):
            outcome = super().start(plan)
            asked.append(("start", plan.number))
            ask = outcome.result.result
            outcome.result.result = lambda: asked.append(("outcome", plan.number)) or ask()
            return outcome

    with engine(checking(Watched)) as running:
        _, queue = running.start_request([1, 2], SamplingParams(max_tokens=4, ignore_eos=True))
        list(queue)

    assert asked == [
        *[("start", 1), ("start", 2), ("outcome", 1), ("start", 3), ("outcome", 2)],
        *[("start", 4), ("outcome", 3), ("outcome", 4)],
    ]


def test_idle_time_is_used_until_a_request_comes_or_nothing_is_left():
    left, may_go_on = [2, 1], threading.Event()

    class Diligent(CheckingRunner):
        def run_idle_work(self):
            if not left:
                return super().run_idle_work()
            left.pop()
            assert may_go_on.wait(120)
            return True

    with engine(checking(Diligent)) as running:
        wait_until(lambda: len(left) == 1)
        _, queue = running.start_request([1, 2], SamplingParams(max_tokens=3, seed=1))
        may_go_on.set()
        tokens = [token for output in queue for token in output.token_ids]

        assert tokens == answer([1, 2], 1, 3)
        wait_until(lambda: not left)


def test_a_token_sampled_behind_the_end_of_an_answer_is_not_delivered(kind):
    prompts = [[number, 3] for number in range(30)]
    with engine(checking(kind)) as running:
        queues = [
            running.start_request(prompt, SamplingParams(max_tokens=50, seed=1))[1]
            for prompt in prompts
        ]

        for prompt, queue in zip(prompts, queues, strict=True):
            assert [t for output in queue for t in output.token_ids] == answer(prompt, 1, 50)
        running.sync()
        assert_spans_come_back(running)


def test_closing_in_the_middle_answers_everybody(kind):
    running = engine(checking(kind))
    queues = [
        running.start_request([i, 1, 2], SamplingParams(ignore_eos=True, n=2))[1] for i in range(30)
    ]

    running.close()

    for queue in queues:
        lasts = [output for output in queue if output.finish_reason is not None]
        assert {output.index for output in lasts} == {0, 1}
        assert {output.finish_reason for output in lasts} <= {
            FinishReason.STOPPED,
            FinishReason.LENGTH,
        }
    assert running.stats().state is EngineState.CLOSED


def test_draining_refuses_new_requests_and_finishes_the_old():
    runner = BlockedRunner(4, (100,), vocab=VOCAB)
    running = engine(runner)
    _, queue = running.start_request([1, 2], SamplingParams(max_tokens=9, seed=3))
    closing = threading.Thread(target=running.close, kwargs={"drain_s": 60})
    closing.start()
    wait_until(lambda: running.stats().state is EngineState.DRAINING)

    with pytest.raises(EngineClosed, match="draining"):
        running.start_request([1])
    runner.go()
    closing.join()

    tokens = [token for output in queue for token in output.token_ids]
    assert tokens == answer([1, 2], 3, 9)


def test_a_failed_step_ends_all_requests_with_its_error_and_closes_the_engine(kind):
    may_fail = threading.Event()
    with engine(failing(kind, may_fail)) as running:
        queues = [running.start_request([i], SamplingParams(ignore_eos=True))[1] for i in range(20)]
        may_fail.set()

        for queue in queues:
            last = list(queue)[-1]
            assert last.finish_reason is FinishReason.ERROR
            assert str(last.error) == "the device is full"
        stats = running.stats()
        assert stats.state is EngineState.FAILED
        assert isinstance(stats.failure, MemoryError)
        with pytest.raises(EngineClosed, match="the engine has failed") as refused:
            running.start_request([1])
        assert refused.value.__cause__ is stats.failure
        with pytest.raises(EngineClosed):
            running.generate("abc")


def test_an_engine_that_is_dropped_answers_its_requests_and_gives_everything_back():
    wait_for_other_engines()
    before, thresholds = threads_of_engines(), gc.get_threshold()
    runner = BlockedRunner(4, (100,), vocab=VOCAB)
    running = engine(runner)
    queues = [running.start_request([i], SamplingParams(ignore_eos=True, n=2))[1] for i in range(9)]
    runner.wait_for_step()
    memory = weakref.ref(runner)

    del running
    runner.go()
    del runner

    for queue in queues:
        lasts = [output for output in queue if output.finish_reason is not None]
        assert {output.index for output in lasts} == {0, 1}
        assert {output.finish_reason for output in lasts} == {FinishReason.ERROR}
        assert all(isinstance(output.error, EngineClosed) for output in lasts)
        assert "the engine was dropped" in str(lasts[0].error)
    wait_until(lambda: threads_of_engines() <= before)
    gc.collect()
    assert memory() is None
    assert gc.get_threshold() == thresholds


def test_an_engine_that_is_dropped_with_a_circle_ends_when_that_is_collected():
    before = threads_of_engines()
    circle = {"engine": engine()}
    circle["itself"] = circle

    del circle
    gc.collect()

    wait_until(lambda: threads_of_engines() <= before)


def test_an_engine_whose_step_failed_gives_everything_back_by_itself(kind):
    before = threads_of_engines()
    may_fail = threading.Event()
    running = engine(failing(kind, may_fail))
    running.start_request([1], SamplingParams(ignore_eos=True))

    may_fail.set()
    wait_until(lambda: running.stats().state is EngineState.FAILED)
    wait_until(lambda: threads_of_engines() <= before)

    running.close()


FORGOTTEN = """
from assembled import engine
from spaninfer_engine import SamplingParams

running = engine(max_len=100_000, num_spans=50_000)
_, queue = running.start_request([1], SamplingParams(ignore_eos=True))
queue.get()
"""


def test_a_program_ends_though_an_engine_of_it_is_at_work():
    program = [sys.executable, "-c", FORGOTTEN]

    run = subprocess.run(
        program,
        env={"PYTHONPATH": ":".join(sys.path)},
        timeout=300,
        capture_output=True,
        check=False,
    )

    assert (run.returncode, run.stderr) == (0, b"")


def test_a_request_whose_logits_are_not_numbers_fails_alone(kind):
    runner = checking(kind)
    runner.fails[2] = 6
    with engine(runner) as running:
        good = running.start_request([1, 2], SamplingParams(max_tokens=12, seed=1))[1]
        bad = running.start_request([3, 4], SamplingParams(ignore_eos=True))[1]

        assert [t for output in good for t in output.token_ids] == answer([1, 2], 1, 12)
        outputs = list(bad)
        assert isinstance(outputs[-1].error, FloatingPointError)
        assert sum(len(output.token_ids) for output in outputs) == 4
        running.sync()
        assert_spans_come_back(running)


def test_a_request_whose_text_cannot_be_made_fails_alone(monkeypatch):
    without = set(answer([1, 2], 1, 12))
    odd = next(token_id for token_id in answer([1, 2], 2, 12) if token_id not in without)
    with engine() as running:
        plain = running.tokenizer.token_bytes

        def broken(token_id, **options):
            if token_id == odd:
                raise KeyError(token_id)
            return plain(token_id, **options)

        monkeypatch.setattr(running.tokenizer, "token_bytes", broken)
        good = running.start_request([1, 2], SamplingParams(max_tokens=12, seed=1))[1]
        bad = running.start_request([1, 2], SamplingParams(max_tokens=12, seed=2))[1]

        assert isinstance(list(bad)[-1].error, KeyError)
        assert "".join(output.text for output in good) == text_of(answer([1, 2], 1, 12))
        running.sync()
        assert_spans_come_back(running)


def test_a_full_queue_refuses_and_a_place_in_it_becomes_free():
    runner = BlockedRunner(4, (100,), vocab=VOCAB)
    with engine(runner, max_running=1, max_waiting=2) as running:
        first, _ = running.start_request([1, 2])
        runner.wait_for_step()
        second, _ = running.start_request([1, 2])
        running.start_request([1, 2])

        with pytest.raises(QueueFull, match="2 requests are waiting; max_waiting is 2"):
            running.start_request([1, 2])
        assert (first.status, second.status) == (Status.RUNNING, Status.WAITING)
        runner.go()
        running.sync()
        assert running.generate([1, 2]).token_ids


def test_a_stopped_request_keeps_what_it_has_produced():
    with engine(max_len=200) as running:
        handle, queue = running.start_request([1], SamplingParams(ignore_eos=True, seed=1))
        outputs = [queue.get()]
        running.stop(handle)
        outputs += queue

    tokens = [token for output in outputs for token in output.token_ids]
    assert outputs[-1].finish_reason in (FinishReason.STOPPED, FinishReason.LENGTH)
    assert outputs[-1].usage.output_len == len(tokens)
    assert tokens == alone([1], seed=1, limit=200)[: len(tokens)]


def test_a_deadline_ends_a_request_that_waits_or_runs():
    runner = BlockedRunner(4, (100,), vocab=VOCAB)
    with engine(runner, max_running=1) as running:
        _, runs = running.start_request([1], placement=Placement(deadline_s=0.0))
        _, waits = running.start_request([2], placement=Placement(deadline_s=0.0))
        runner.go()

        assert list(runs)[-1].finish_reason is FinishReason.DEADLINE
        assert list(waits)[-1].finish_reason is FinishReason.DEADLINE


def test_released_requests_are_stopped_and_forgotten(kind):
    with engine(checking(kind)) as running:
        handle, queue = running.start_request([1], SamplingParams(ignore_eos=True))
        running.release(handle)
        running.release(handle)
        running.sync()
        queue.wait_finished()

        assert_spans_come_back(running)


def test_after_a_thousand_cut_requests_no_span_is_missing(kind):
    with engine(checking(kind), max_running=32) as running:
        for number in range(1000):
            handle, _ = running.start_request([number % VOCAB, 1, 2, 3, 4])
            if number % 10:
                running.release(handle)
        running.sync()
        wait_until(lambda: sum(running.stats().finished.values()) == 1000)

        assert_spans_come_back(running)


ENDLESS = SamplingParams(ignore_eos=True)


def test_a_step_that_hangs_fails_the_engine_and_every_request_that_waits_or_comes(caplog):
    runner = BlockedRunner(4, (100,), vocab=VOCAB, held=2)
    running = engine(runner, max_running=1, step_timeout_s=0.05)
    queues = [running.start_request([1, 2], ENDLESS)[1] for _ in range(3)]
    runner.wait_for_step()

    errors = [list(queue)[-1].error for queue in queues]

    assert [type(error) for error in errors] == [StepTimeout] * 3
    assert running.stats().state is EngineState.FAILED
    with pytest.raises(EngineClosed, match="the engine has failed"):
        running.start_request([1, 2])
    with pytest.raises(StepTimeout, match=r"within 0\.05 s"):
        running.close()
    [said] = [each.getMessage() for each in caplog.records]
    assert "thread spaninfer-core:" in said
    assert "self._may_go.wait(120)" in said  # where it hangs
    runner.go()


def test_a_step_that_ends_after_all_changes_no_answer_and_gives_everything_back():
    before = threads_of_engines()
    runner = BlockedRunner(4, (100,), vocab=VOCAB, held=2)
    running = engine(runner, step_timeout_s=0.05)
    _, queue = running.start_request([1, 2], ENDLESS)

    assert isinstance(list(queue)[-1].error, StepTimeout)
    runner.go()
    wait_until(lambda: threads_of_engines() <= before)

    running.close()
    assert queue.get() is None
    assert isinstance(running.stats().failure, StepTimeout)


def test_an_engine_that_is_closed_while_a_step_hangs_waits_no_longer_than_told():
    runner = BlockedRunner(4, (100,), vocab=VOCAB)
    running = engine(runner)
    _, queue = running.start_request([1, 2], ENDLESS)
    runner.wait_for_step()

    with pytest.raises(StepTimeout):
        running.close(patience_s=0.01)

    assert isinstance(list(queue)[-1].error, StepTimeout)
    runner.go()


def test_steps_that_take_their_time_each_are_not_taken_for_one_that_hangs(kind):
    class Slow(kind):
        def run_next(self):
            time.sleep(0.01)
            return super().run_next()

    with engine(checking(Slow), step_timeout_s=0.5) as running:
        sampling = SamplingParams(max_tokens=80, ignore_eos=True)
        assert len(running.generate([1, 2], sampling).token_ids) == 80


def test_a_frozen_engine_computes_nothing_and_goes_on_where_it_was(kind):
    sampling = SamplingParams(max_tokens=100, seed=1, ignore_eos=True)
    with engine(checking(kind)) as running:
        handle, queue = running.start_request([1, 2], sampling)
        tokens = [*queue.get().token_ids]
        running.freeze()
        stopped, stopped_queue = running.start_request([3], sampling)
        running.stop(stopped)
        assert [each.finish_reason for each in stopped_queue][-1] is FinishReason.STOPPED
        num_steps, has = running.stats().steps, handle.num_output_tokens
        late, late_queue = running.start_request([4], replace(sampling, max_tokens=3))
        running.stop(stopped)  # taken in behind the late one
        wait_until(lambda: running.stats().waiting == 1)

        assert (running.stats().steps, handle.num_output_tokens) == (num_steps, has)
        assert late.status is Status.WAITING
        running.thaw()
        tokens += [token for output in queue for token in output.token_ids]
        list(late_queue)
        expected = running.generate([1, 2], sampling).token_ids

    assert tokens == list(expected)
    assert handle.num_output_tokens == 100


def test_a_frozen_engine_closes(kind):
    with engine(checking(kind)) as running:
        running.freeze()
        _, queue = running.start_request([1], SamplingParams(max_tokens=3))

    assert [each.finish_reason for each in queue][-1] is FinishReason.STOPPED


def test_prefixes_that_are_reset_are_computed_again_and_shared_again(kind):
    prompt, sampling = [1, 2, 3, 4] * 5, SamplingParams(max_tokens=2, seed=1)

    def cached_len(running):
        _, queue = running.start_request(prompt, sampling)
        return [each.usage for each in queue][-1].cached_len

    with engine(checking(kind)) as running:
        assert cached_len(running) == 0
        assert cached_len(running) > 0
        running.reset_prefix_cache()
        assert cached_len(running) == 0
        assert cached_len(running) > 0
        running.reset_prefix_cache()
        running.sync()
        assert_spans_come_back(running)
