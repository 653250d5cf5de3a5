"""Tokens whose text is made elsewhere."""

import numpy as np
import pytest
from assembled import VOCAB, engine, wait_until
from spaninfer_engine import Engine, FinishReason, InvalidPrompt, Placement, SamplingParams
from spaninfer_engine.logprobs import Entry
from spaninfer_engine.schedule.sequence import Ended, SequenceState

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

    def push(self, token: int, logprob: Entry | None) -> None:
        assert logprob is None
        self.relay.tokens[self.index].append(token)

    def end(self, ended: Ended) -> None:
        if ended.token is not None:
            self.relay.tokens[self.index].append(ended.token[1])
        self.relay.ended.append(ended)


def _start(running: Engine, relay: Relay, sampling: SamplingParams = GREEDY):
    ids = np.array([1, 2, 3], np.int64)
    return running.start_relayed(ids, sampling, Placement(), relay)


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

        monkeypatch.setattr(running._parts.runner, "start", fail)
        _start(running, relay)
        wait_until(lambda: bool(relay.ended))
        assert relay.ended[0].reason is FinishReason.ERROR
        assert isinstance(relay.ended[0].error, MemoryError)
