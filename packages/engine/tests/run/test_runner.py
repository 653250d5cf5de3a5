"""The runner: its state between steps, inputs of the sampler, failures of single requests."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from families import FAMILIES
from greedy import Greedy
from oracle import Oracle, prompt
from runners import runner_on
from spaninfer_engine.backends.reference.ops import ReferenceOps
from spaninfer_engine.program.bind import bind
from spaninfer_engine.program.lower import lower
from spaninfer_engine.request.logprobs import LogprobAt, TokenLogprobs
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.run.runner import HostSampler, Runner
from spaninfer_engine.run.sampler import Sampler
from spaninfer_engine.step.plan import NewSequence, Slice, StepPlan, TableUpdate
from stepping import Model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(Oracle(FAMILIES["qwen3"], seed=3).save(tmp_path_factory.mktemp("model")))


class Recording(Greedy):
    """Also keeps what it was asked about prompts, and fails requests by id."""

    def __init__(self, *failing: int) -> None:
        super().__init__()
        self.failing = failing
        self.next_ids: list[list[int]] = []

    def prompt_logprobs(self, seq_id: int, logits: Any, next_ids: Any) -> TokenLogprobs:
        super().prompt_logprobs(seq_id, logits, next_ids)
        self.next_ids.append(next_ids.tolist())
        found = TokenLogprobs.empty(len(next_ids), 0)
        found.token_ids[:] = next_ids
        return found

    def sample(
        self, logits: Any, seq_ids: Sequence[int], positions: Any, tokens: Any
    ) -> tuple[list[int], dict[int, LogprobAt], dict[int, Exception]]:
        drawn, logprobs, _ = super().sample(logits, seq_ids, positions, tokens)
        return drawn, logprobs, {i: ValueError(f"{i}") for i in seq_ids if i in self.failing}


def _runner(model: Model, sampler: HostSampler, ops: ReferenceOps | None = None) -> Runner:
    ops = ops or ReferenceOps("float32")
    return runner_on(
        bind(lower(model.decoder), ops, model.checkpoint.reader),
        ops,
        sampler,
        model.decoder,
        span_len=4,
        num_spans=[16],
        max_len=32,
        max_running=2,
    )


def _enter(seq_id: int, length: int, *slices: Slice) -> StepPlan:
    entry = NewSequence(seq_id, tuple(prompt(length)), SamplingParams(), seed=0)
    spans = tuple(range(seq_id * 8, seq_id * 8 + 8))
    return StepPlan(1, slices, (entry,), (TableUpdate(seq_id, 0, 0, spans),))


def test_a_sampled_token_is_the_input_of_the_next_position(model: Model):
    sampler = Greedy()
    runner = _runner(model, sampler)
    ids = prompt(5)

    first = runner.run(_enter(0, 5, Slice(0, 0, 5, 4, True))).tokens[0]
    runner.run(StepPlan(2, (Slice(0, 5, 6, 5, True),)))

    again = Greedy()
    entry = NewSequence(0, (*ids, first), SamplingParams(), 0)
    whole = StepPlan(1, (Slice(0, 0, 6, 5, True),), (entry,), (TableUpdate(0, 0, 0, (3, 1)),))
    _runner(model, again).run(whole)
    np.testing.assert_allclose(sampler.seen[0][1], again.seen[0][0], atol=1e-4)


def test_prompt_logprobs_are_asked_about_the_token_that_follows(model: Model):
    sampler = Recording()
    runner = _runner(model, sampler)
    ids = prompt(6)

    chunk = runner.run(_enter(0, 6, Slice(0, 0, 4, 0, False)))
    rest = runner.run(StepPlan(2, (Slice(0, 4, 6, 4, True),)))

    assert sampler.next_ids == [ids[1:5], ids[5:6]]
    assert [item.token_id for item in chunk.prompt_logprobs[0]] == ids[1:5]
    assert len(rest.prompt_logprobs[0]) == 1
    assert chunk.tokens == (None,)
    assert rest.tokens[0] is not None


def test_a_chunk_without_logit_positions_samples_nothing(model: Model):
    result = _runner(model, Greedy()).run(_enter(0, 6, Slice(0, 0, 4, 4, False)))

    assert result.tokens == (None,)
    assert result.prompt_logprobs == {}


def test_a_request_at_fault_gets_no_token_and_the_others_carry_on(model: Model):
    runner = _runner(model, Recording(0))
    runner.run(_enter(0, 5, Slice(0, 0, 4, 4, False)))

    entry = NewSequence(1, tuple(prompt(3)), SamplingParams(), 0)
    slices = (Slice(0, 4, 5, 4, True), Slice(1, 0, 3, 2, True))
    result = runner.run(StepPlan(2, slices, (entry,), (TableUpdate(1, 0, 0, (9,)),)))

    assert result.tokens[0] is None
    assert result.tokens[1] is not None
    assert list(result.failed) == [0]


class Panic(BaseException):
    """As libraries in Rust raise."""


class Untenable:
    """A grammar that breaks when an answer begins."""

    def matcher(self, *_: Any) -> Any:
        raise Panic("the grammar blew up")


def test_a_request_whose_grammar_breaks_fails_alone_with_its_first_step(model: Model):
    alone = _runner(model, Sampler(model.decoder.vocab))
    expected = alone.run(_enter(1, 5, Slice(1, 0, 5, 4, True))).tokens

    runner = _runner(model, Sampler(model.decoder.vocab))
    good = _enter(1, 5, Slice(1, 0, 5, 4, True))
    bad = NewSequence(0, tuple(prompt(5)), SamplingParams(), 0, grammar=Untenable())
    spans = TableUpdate(0, 0, 0, tuple(range(8)))
    plan = StepPlan(
        1,
        (Slice(0, 0, 4, 4, False), *good.slices),
        (bad, *good.new_sequences),
        (spans, *good.table_updates),
    )
    result = runner.run(plan)

    assert result.tokens == (None, *expected)
    assert list(result.failed) == [0]
    assert "the grammar blew up" in str(result.failed[0])
    again = runner.run(StepPlan(2, (Slice(1, 5, 6, 5, True),), finished=(0,)))
    assert again.failed == {}


class Shy(Sampler):
    """Fails to say anything of the prompt of one request."""

    def prompt_logprobs(self, seq_id: int, logits: Any, next_ids: Any) -> TokenLogprobs:
        if seq_id == 0:
            raise ZeroDivisionError("of the prompt")
        return super().prompt_logprobs(seq_id, logits, next_ids)


def test_a_request_of_whose_prompt_nothing_can_be_said_fails_alone(model: Model):
    runner = _runner(model, Shy(model.decoder.vocab))
    entries = [
        NewSequence(number, tuple(prompt(5)), SamplingParams(prompt_logprobs=1), seed=0)
        for number in range(2)
    ]
    updates = [TableUpdate(n, 0, 0, tuple(range(8 * n, 8 * n + 8))) for n in range(2)]
    slices = [Slice(number, 0, 5, 0, True) for number in range(2)]

    result = runner.run(StepPlan(1, tuple(slices), tuple(entries), tuple(updates)))

    assert list(result.failed) == [0]
    assert result.tokens[0] is None
    assert result.tokens[1] is not None
    assert list(result.prompt_logprobs) == [1]


def test_a_step_without_memory_ends_its_requests_and_others_are_computed(model: Model):
    class ShortOps(ReferenceOps):
        steps = 0

        def to_host(self, array: Any) -> Any:
            self.steps += 1
            if self.steps == 3:  # the first warms up
                raise MemoryError("the host is full")
            return super().to_host(array)

    runner = _runner(model, Greedy(), ShortOps("float32"))
    first = runner.run(_enter(0, 5, Slice(0, 0, 5, 4, True)))

    entry, growth = (
        NewSequence(1, tuple(prompt(5)), SamplingParams(), 0),
        TableUpdate(1, 0, 0, (9, 8)),
    )
    slices = (Slice(0, 5, 6, 5, True), Slice(1, 0, 5, 4, True))
    lost = runner.run(StepPlan(2, slices, (entry,), (growth,)))
    again = runner.run(replace(_enter(1, 5, Slice(1, 0, 5, 4, True)), finished=(0, 1)))

    assert lost.tokens == (None, None)
    assert list(lost.failed) == [0, 1]
    assert all("no memory for a step of 6 tokens" in str(error) for error in lost.failed.values())
    assert all(error.__context__ is None for error in lost.failed.values())  # it holds the step
    assert again.tokens == first.tokens


def test_a_request_that_has_left_is_forgotten_and_its_id_may_come_again(model: Model):
    runner = _runner(model, Greedy())
    first = runner.run(_enter(0, 5, Slice(0, 0, 5, 4, True)))

    again = runner.run(replace(_enter(0, 5, Slice(0, 0, 5, 4, True)), finished=(0,)))

    assert again.tokens == first.tokens


def test_closing_twice_does_no_harm(model: Model):
    with _runner(model, Greedy()) as runner:
        runner.close()

    runner.close()
    with pytest.raises(AssertionError, match="closed"):
        runner.run(_enter(0, 5, Slice(0, 0, 5, 4, True)))


def test_a_closed_runner_keeps_neither_weights_nor_spans(model: Model):
    ops = ReferenceOps("float32")  # kernels hold it beside their weights
    runner = _runner(model, Greedy(), ops)
    runner.run(_enter(0, 5, Slice(0, 0, 5, 4, True)))
    alive, spans = weakref.ref(ops), weakref.ref(_memory(runner))
    del ops

    runner.close()

    assert alive() is None
    assert spans() is None


def _memory(runner: Runner) -> Any:
    """Return the array that spans are views of."""
    device: Any = runner._device
    array = device._held.memory.caches[0].keys
    while array.base is not None:
        array = array.base
    return array
