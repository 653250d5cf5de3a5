"""Relayed tokens, detokenised by their receiver."""

from threading import enumerate as enumerate_threads
from time import sleep
from typing import Any

import numpy as np
import pytest
from assembled import VOCAB, assert_spans_come_back, engine, wait_until
from checking import BlockedRunner, CheckingRunner
from spaninfer_engine import Engine, FinishReason, InvalidPrompt, Placement, SamplingParams
from spaninfer_engine.request.logprobs import LogprobAt
from spaninfer_engine.schedule.sequence import Ended, SequenceState
from spaninfer_engine.step.plan import StepPlan

GREEDY = SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=9, seed=5, ignore_eos=True)


class Relay:
    """Keeps what it is given; `sent` holds as many numbers of tokens as there were messages."""

    def __init__(self, *, is_read_at_end: bool = False) -> None:
        self.is_read_at_end = is_read_at_end
        self.tokens: dict[int, list[int]] = {}
        self.ended: list[Ended] = []
        self.sent: list[int] = []

    @property
    def batch(self) -> "Relay":
        return self

    def sequence(self, seq: SequenceState) -> "Choice":
        self.tokens[seq.index] = []
        return Choice(self, seq.index)

    def send(self) -> None:
        self.sent.append(sum(map(len, self.tokens.values())) + len(self.ended))


class Choice:
    """One choice of a relay."""

    def __init__(self, relay: Relay, index: int) -> None:
        self.relay, self.index = relay, index

    def push(self, token: int, logprob: LogprobAt | None) -> None:
        assert logprob is None
        self.relay.tokens[self.index].append(token)

    def end(self, ended: Ended) -> None:
        if ended.token is not None:
            self.relay.tokens[self.index].append(ended.token[1])
        self.relay.ended.append(ended)


def _start(running: Engine, relay: Relay, sampling: SamplingParams = GREEDY):
    ids = np.array([1, 2, 3], np.int64)
    request = running.start_relayed(ids, sampling, Placement(), relay)
    running.hand_over()
    return request


@pytest.mark.parametrize("is_read_at_end", [False, True])
def test_a_relay_gets_the_tokens_that_a_queue_would_get(is_read_at_end: bool) -> None:
    with engine() as running:
        sampling = SamplingParams(max_tokens=9, seed=5, n=2, ignore_eos=True)
        expected = running.generate([[1, 2, 3]], sampling)
        relay = Relay(is_read_at_end=is_read_at_end)
        request = _start(running, relay, sampling)
        wait_until(lambda: len(relay.ended) == 2 and relay.sent and relay.sent[-1] == 20)
        assert [tuple(relay.tokens[index]) for index in range(2)] == [
            each.token_ids for each in expected
        ]
        assert request.num_output_tokens == 18
        assert len(relay.sent) >= 9, "a message for each step"


def test_relays_and_queues_get_their_own_side_by_side() -> None:
    with engine() as running:
        expected = running.generate([1, 2, 3], SEEDED)
        relays = [Relay() for _ in range(3)]
        queues = []
        for relay in relays:
            queues.append(running.start_request([1, 2, 3], SEEDED)[1])
            _start(running, relay, SEEDED)
        for queue in queues:
            assert sum((output.token_ids for output in queue), ()) == expected.token_ids
        wait_until(lambda: all(relay.ended for relay in relays))
        assert [tuple(relay.tokens[0]) for relay in relays] == [expected.token_ids] * 3


def test_a_choice_is_stopped_for_the_reason_that_is_given() -> None:
    with engine(max_len=4096, num_spans=600) as running:
        relay = Relay()
        long = SamplingParams(temperature=0, ignore_eos=True, n=2)
        request = _start(running, relay, long)
        wait_until(lambda: len(relay.tokens.get(1, ())) > 2)
        running.stop_relayed(request, 1, FinishReason.STOP)
        wait_until(lambda: bool(relay.ended))
        assert [(end.seq.index, end.reason) for end in relay.ended] == [(1, FinishReason.STOP)]
        running.stop_relayed(request, 0, FinishReason.STOPPED)
        wait_until(lambda: len(relay.ended) == 2)


def test_a_request_that_is_refused_relays_nothing() -> None:
    with engine() as running:
        relay = Relay()
        with pytest.raises(InvalidPrompt):
            running.start_relayed(np.array([VOCAB + 1]), GREEDY, Placement(), relay)
        assert not relay.tokens


def test_where_a_step_fails_relays_get_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine() as running:
        relay = Relay()

        def fail(*_: object) -> None:
            raise MemoryError("broken")

        monkeypatch.setattr(running._core._runner, "start", fail)
        _start(running, relay)
        wait_until(lambda: bool(relay.ended))
        assert relay.ended[0].reason is FinishReason.ERROR
        assert isinstance(relay.ended[0].error, MemoryError)


class Counting(CheckingRunner):
    """Notes how many sequences each step has."""

    def __init__(self) -> None:
        super().__init__(4, (100,), vocab=VOCAB)
        self.sizes: list[int] = []

    def start(self, plan: StepPlan) -> Any:
        self.sizes.append(len(plan.slices))
        return super().start(plan)


FOUR = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)


def _hold(running: Engine, relay: Relay, first: int, sampling: SamplingParams = FOUR) -> Any:
    return running.start_relayed(np.array([first, 1], np.int64), sampling, Placement(), relay)


@pytest.mark.parametrize("how", ["handed over", "by a request that is not relayed"])
def test_relayed_requests_wait_for_each_other_and_begin_together(how: str) -> None:
    runner = Counting()
    with engine(runner) as running:
        relays = [Relay() for _ in range(5)]
        for first, relay in enumerate(relays):
            _hold(running, relay, first)
        sleep(0.05)
        assert not any(relay.tokens for relay in relays)
        if how == "handed over":
            running.hand_over()
        else:
            assert list(running.start_request([5, 1], FOUR)[1])
        wait_until(lambda: all(relay.ended for relay in relays))
        assert all(len(relay.tokens[0]) == 4 for relay in relays)
    assert runner.sizes == [5 if how == "handed over" else 6] * 4


def test_a_waiting_request_that_is_stopped_ends_and_lets_the_others_begin() -> None:
    with engine() as running:
        stopped, other = Relay(), Relay()
        request = _hold(running, stopped, 1, SamplingParams(ignore_eos=True))
        _hold(running, other, 2)
        running.stop_relayed(request, 0, FinishReason.STOPPED)
        wait_until(lambda: bool(stopped.ended and other.ended))
        assert stopped.ended[0].reason is FinishReason.STOPPED
        assert len(other.tokens[0]) == 4
        assert_spans_come_back(running)


def test_closing_and_failing_answer_requests_that_wait() -> None:
    running, relay = engine(), Relay()
    _hold(running, relay, 1, SamplingParams(ignore_eos=True))
    running.close()
    assert [end.reason for end in relay.ended] == [FinishReason.STOPPED]

    before = set(enumerate_threads())
    runner, relay = BlockedRunner(4, (100,), vocab=VOCAB), Relay()
    hung = engine(runner, step_timeout_s=0.2)
    begun = hung.start_request([1], FOUR)[1]
    runner.wait_for_step()
    _hold(hung, relay, 2)
    assert list(begun)[-1].error is not None
    wait_until(lambda: bool(relay.ended))
    assert relay.ended[0].reason is FinishReason.ERROR
    runner.go()
    wait_until(lambda: set(enumerate_threads()) <= before)
    hung.close()


class Clumsy(Choice):
    """Drops its third token."""

    def push(self, token: int, logprob: LogprobAt | None) -> None:
        super().push(token, logprob)
        if len(self.relay.tokens[self.index]) == 3:
            raise TypeError("this token does not travel")


class ClumsyRelay(Relay):
    def sequence(self, seq: SequenceState) -> Choice:
        self.tokens[seq.index] = []
        return Clumsy(self, seq.index)


def test_a_request_whose_token_cannot_be_handed_on_fails_alone() -> None:
    good, bad = Relay(), ClumsyRelay()
    with engine() as running:
        expected = running.generate([1, 2, 3], SEEDED).token_ids
        _start(running, bad, SEEDED)
        _start(running, good, SEEDED)
        wait_until(lambda: bool(good.ended and bad.ended))
        assert_spans_come_back(running)

    assert tuple(good.tokens[0]) == tuple(expected)
    [end] = bad.ended
    assert end.reason is FinishReason.ERROR
    assert isinstance(end.error, TypeError)
