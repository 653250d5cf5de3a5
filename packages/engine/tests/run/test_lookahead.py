"""Whole engines on an asynchronous device: the same answers as without lookahead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from families import FAMILIES
from launch_order import watch
from numpy.typing import NDArray
from oracle import Oracle, prompt
from runners import runner_on
from spaninfer_engine.backends.backend import HOST_TUNING
from spaninfer_engine.backends.cpu.ops import CpuOps
from spaninfer_engine.backends.cuda.graphs.shapes import GraphShapes
from spaninfer_engine.config import Resolved
from spaninfer_engine.core.stats import EngineState
from spaninfer_engine.engine import Engine
from spaninfer_engine.errors import InvalidMask, NoMemory, NoToken, WrongThread
from spaninfer_engine.program.bind import bind
from spaninfer_engine.program.lower import lower
from spaninfer_engine.request.request import FinishReason, Matcher, SamplingParams, fill_each
from spaninfer_engine.request.structured import StructuredOutput
from spaninfer_engine.run.runner import Runner
from spaninfer_engine.run.sampler import Sampler
from spaninfer_engine.startup.components import Parts
from spaninfer_engine.step.batch import Batch
from spaninfer_engine.step.device import Updates
from spaninfer_engine.step.plan import NewSequence, Slice, StepPlan, TableUpdate
from spaninfer_engine.step.sequences import Sequences
from spaninfer_engine.text.ids_only import wordless_tokenizer
from spaninfer_engine.text.template import ChatTemplate
from stepping import Model
from threaded_device import Answer, ThreadedDevice

SPAN_LEN = 4
MAX_LEN, VOCAB = 96, 199

SAMPLINGS = {
    "greedy": SamplingParams(temperature=0, max_tokens=30, ignore_eos=True),
    "drawn": SamplingParams(temperature=1.3, top_k=20, top_p=0.9, min_p=0.01, max_tokens=30),
    "penalties": SamplingParams(repetition_penalty=1.3, frequency_penalty=0.4, max_tokens=25),
    "n-grams": SamplingParams(temperature=0, no_repeat_ngram=2, max_tokens=25, ignore_eos=True),
    "biases": SamplingParams(logit_bias={5: 3.0, 9: -2.0}, presence_penalty=0.5, max_tokens=20),
    "log-probabilities": SamplingParams(logprobs=2, prompt_logprobs=1, max_tokens=12),
    "of processed logits": SamplingParams(
        temperature=0.7, logprobs=3, processed_logprobs=True, max_tokens=9
    ),
    "of the prompt": SamplingParams(prompt_logprobs=0, max_tokens=9),
    "typical": SamplingParams(temperature=1.2, typical_p=0.6, top_p=0.9, max_tokens=20),
    "late end": SamplingParams(temperature=1.5, min_tokens=8, max_tokens=40, stop_ids=(5, 6, 7)),
    "several": SamplingParams(temperature=0.8, n=3, max_tokens=11),
    "one token": SamplingParams(max_tokens=1),
}


def _model(name: str, folder: Any) -> Model:
    return Model(Oracle(FAMILIES[name], seed=3).save(folder))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return _model("qwen3", tmp_path_factory.mktemp("model"))


def _parts(model: Model, make_runner: Any, num_spans: int, max_running: int) -> Parts:
    decoder = model.decoder
    counts = (num_spans,) * len(decoder.groups)
    ops = CpuOps()
    bound = bind(lower(decoder), ops, model.checkpoint.reader)
    resolved = Resolved(
        name="m", architecture="m", backend="cpu", device="cpu", dtype="float32",
        kv_dtype="float32",
        max_len=MAX_LEN, span_len=SPAN_LEN, num_spans=counts, max_running=max_running,
        step_tokens=24, max_waiting=1000, prefix_cache=True, seed=0, decisions=(),
        tuning=replace(HOST_TUNING, step_tokens=24),
    )  # fmt: skip
    return Parts(
        resolved=resolved,
        model=decoder,
        runner=make_runner(bound, ops, resolved),
        tokenizer=wordless_tokenizer(decoder.vocab, [2]),
        template=ChatTemplate(None, origin="m", special_tokens={}),
        sampling=SamplingParams(),
        end_ids=frozenset({2}),
    )


def _one_by_one(model: Model) -> Any:
    def make(bound: Any, ops: Any, resolved: Resolved) -> Runner:
        return runner_on(
            bound, ops, Sampler(model.decoder.vocab), model.decoder, span_len=SPAN_LEN,
            num_spans=resolved.num_spans, max_len=MAX_LEN, max_running=resolved.max_running,
        )  # fmt: skip

    return make


def _ahead(
    model: Model,
    *,
    padded: bool = False,
    made: Any = None,
    kind: type[ThreadedDevice] = ThreadedDevice,
) -> Any:
    def make(bound: Any, ops: Any, resolved: Resolved) -> Runner:
        num_rows = resolved.max_running
        sequences = Sequences(
            len(model.decoder.groups), max_len=MAX_LEN, span_len=SPAN_LEN, num_rows=num_rows
        )
        device = kind(
            bound, ops, model.decoder, sequences, num_rows=num_rows,
            num_spans=resolved.num_spans,
            shapes=GraphShapes(num_rows, 64, 2048, 2048) if padded else None,
        )  # fmt: skip
        if made is not None:
            made.append(device)
        return Runner(device, sequences, Sampler(model.decoder.vocab), vocab=model.decoder.vocab)

    return make


def _answers(parts: Parts) -> list[Any]:
    """Return tokens and log-probabilities of many requests that run together."""
    with Engine(parts) as engine:
        return [list(_choices(queue)) for _, queue in _start_all(engine)]


def _start_all(engine: Engine) -> list[Any]:
    return [
        engine.start_request(prompt(3 + 4 * number), replace(sampling, seed=number))
        for number, sampling in enumerate([*SAMPLINGS.values(), *SAMPLINGS.values()])
    ]


def _choices(queue: Any) -> Iterator[Any]:
    outputs = sorted(queue, key=lambda output: output.index)
    for output in outputs:
        assert output.error is None
        yield output.index, output.token_ids, output.prompt_logprobs, output.logprobs


def _joined(answers: list[Any]) -> list[Any]:
    """Return per request and choice the tokens, and ids and ranks of log-probabilities."""
    joined = []
    for pieces in answers:
        choices: dict[int, tuple[list[int], list[Any], list[Any]]] = {}
        for index, token_ids, about_prompt, logprobs in pieces:
            tokens, prompts, drawn = choices.setdefault(index, ([], [], []))
            tokens += token_ids
            prompts += [(item.token_id, item.rank) for item in about_prompt]
            drawn += [(item.token_id, item.rank) for item in logprobs]
        joined.append(choices)
    return joined


@pytest.mark.parametrize("padded", [False, True], ids=["as they are", "padded"])
@pytest.mark.parametrize(
    ("num_spans", "max_running"),
    [(400, 32), (400, 3), (60, 12)],
    ids=["plenty", "few rows", "few spans"],
)
def test_answers_are_those_of_a_runner_that_goes_step_by_step(
    model: Model, num_spans: int, max_running: int, padded: bool
) -> None:
    expected = _answers(_parts(model, _one_by_one(model), num_spans, max_running))
    made: list[ThreadedDevice] = []

    actual = _answers(
        _parts(model, _ahead(model, padded=padded, made=made), num_spans, max_running)
    )

    assert _joined(actual) == _joined(expected)
    assert any(shape.prompts for shape in made[0].shapes) is padded


@pytest.mark.parametrize(("num_spans", "max_running"), [(60, 12), (24, 3)])
def test_choices_that_make_way_get_the_answers_of_those_that_never_do(
    model: Model, num_spans: int, max_running: int
) -> None:
    expected = _answers(_parts(model, _one_by_one(model), 400, 32))

    actual = _answers(_parts(model, _ahead(model), num_spans, max_running))

    assert _joined(actual) == _joined(expected)


def _only_even(output_ids: Any) -> Any:
    """Allow the ids that follow the last one by an even number; all at the beginning."""
    if not len(output_ids):
        return None
    return (np.arange(VOCAB) - output_ids[-1]) % 2 == 0


def _broken(output_ids: Any) -> Any:
    if len(output_ids) < 3:
        return None
    raise ZeroDivisionError("a mask fails")


MASKED = (
    SamplingParams(mask=_only_even, max_tokens=20, ignore_eos=True),
    SamplingParams(max_tokens=15, ignore_eos=True),
    SamplingParams(mask=_broken, max_tokens=9, ignore_eos=True),
    SamplingParams(mask=_only_even, temperature=0, max_tokens=9, repetition_penalty=1.4),
    SamplingParams(mask=_only_even, logprobs=1, n=2, max_tokens=7, ignore_eos=True),
    SamplingParams(mask=lambda ids: np.zeros(VOCAB, bool) if len(ids) > 4 else None),
    SamplingParams(mask=lambda _: np.ones(3, bool)),
)


def _masked(parts: Parts) -> list[Any]:
    """Return tokens and errors of requests with token masks, and beside some."""
    with Engine(parts) as engine:
        started = [
            engine.start_request(prompt(5 + 7 * number), replace(sampling, seed=number))
            for number, sampling in enumerate(MASKED)
        ]
        answers = []
        for _, queue in started:
            tokens: dict[int, list[int]] = {}
            error = None
            for output in queue:
                tokens.setdefault(output.index, []).extend(output.token_ids)
                error = output.error or error
            answers.append((tokens, type(error), str(error).rpartition(":")[2]))
        return answers


@pytest.mark.parametrize("padded", [False, True], ids=["as they are", "padded"])
def test_masks_limit_tokens_while_steps_are_launched_ahead(model: Model, padded: bool) -> None:
    made: list[ThreadedDevice] = []
    expected = _masked(_parts(model, _one_by_one(model), 400, 8))

    actual = _masked(_parts(model, _ahead(model, padded=padded, made=made), 400, 8))

    assert actual == expected
    (tokens, error, _), *_ = actual
    assert error is type(None)
    assert len(tokens[0]) == 20
    assert len({token % 2 for token in tokens[0]}) == 1
    assert [answer[1] for answer in actual] == [
        *(type(None), type(None), ZeroDivisionError, type(None), type(None)),
        *(NoToken, InvalidMask),
    ]
    assert made[0].num_masked > 10


@pytest.mark.parametrize("lookahead", [False, True], ids=["one by one", "ahead"])
def test_a_mask_that_waits_for_the_engine_ends_its_own_request_alone(
    model: Model, lookahead: bool
) -> None:
    runner = _ahead(model) if lookahead else _one_by_one(model)
    with Engine(_parts(model, runner, 400, 8)) as engine:
        waiting: list[Callable[[], object]] = [
            *(engine.close, engine.sleep, engine.wake_up, engine.sync, engine.wait_over),
            *(partial(engine.generate, [1]), partial(engine.update_weights, ".")),
            partial(engine.chat, [{"role": "user", "content": "Hello!"}]),
        ]
        _, beside = engine.start_request([1, 2], max_tokens=40, ignore_eos=True)
        for call in waiting:
            with pytest.raises(WrongThread, match=r"\(\) was called in the engine's own thread"):
                engine.generate([1, 2], max_tokens=5, mask=lambda _, call=call: call())

        assert sum(len(output.token_ids) for output in beside) == 40


def test_a_listener_does_not_wait_for_the_engine_either(model: Model) -> None:
    refused: list[WrongThread] = []

    def listen() -> None:
        try:
            engine.generate([1])
        except WrongThread as error:
            refused.append(error)

    with Engine(_parts(model, _one_by_one(model), 400, 8)) as engine:
        engine.freeze()
        _, queue = engine.start_request([1, 2], max_tokens=4, ignore_eos=True)
        queue.listen(listen)
        engine.thaw()

        assert sum(len(output.token_ids) for output in queue) == 4
    assert refused


def test_a_mask_may_stop_its_request_and_look_at_the_engine(model: Model) -> None:
    known: list[EngineState] = []

    def look(token_ids: NDArray[np.int32]) -> None:
        if len(token_ids) == 2:
            known.append(engine.stats().state)
            engine.stop(handle)

    with Engine(_parts(model, _one_by_one(model), 400, 8)) as engine:
        engine.freeze()
        handle, queue = engine.start_request([1, 2], mask=look, max_tokens=40, ignore_eos=True)
        engine.thaw()

        assert list(queue)[-1].finish_reason is FinishReason.STOPPED
    assert known == [EngineState.RUNNING]


def test_the_step_behind_a_masked_one_is_launched_before_its_result_is_read(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = SamplingParams(mask=_only_even, temperature=0, max_tokens=20, ignore_eos=True)
    order = watch(ThreadedDevice, Answer, monkeypatch)

    with Engine(_parts(model, _ahead(model), 400, 8)) as engine:
        engine.generate([prompt(5 + number) for number in range(3)], sampling)

    assert len(order.steps) >= 20
    assert sum(order.ahead) >= len(order.ahead) - 2  # requests began, or ended, in between


@pytest.mark.parametrize("padded", [False, True], ids=["as they are", "padded"])
@pytest.mark.parametrize("num_cpus", [1, 4])  # 4: masks of many rows have threads
def test_grammars_are_followed_while_steps_are_launched_ahead(
    model: Model, padded: bool, num_cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llguidance")
    from spaninfer_engine.grammar import llguidance

    llguidance._threads.cache_clear()
    monkeypatch.setattr(llguidance, "usable_cpus", lambda: num_cpus)
    begin, begun = llguidance._MaskThreads.begin, []
    monkeypatch.setattr(
        llguidance._MaskThreads, "begin", lambda *told: begun.append(told) or begin(*told)
    )
    function = SamplingParams(mask=_only_even, max_tokens=15, ignore_eos=True, seed=3)
    forms = ("[a-z]{3,9}", "[0-9]{12}", "(ab|cd)*ef")
    guided = [
        SamplingParams(structured=StructuredOutput(regex=form), seed=number, min_tokens=number, n=4)
        for number, form in enumerate(forms)
    ]
    free = SamplingParams(max_tokens=15, ignore_eos=True, seed=9)

    def answers(make_runner: Any) -> list[tuple[int, ...]]:
        words = byte_tokenizer(VOCAB)
        parts = replace(_parts(model, make_runner, 400, 16), tokenizer=words)
        with Engine(parts) as engine:
            prompts = [prompt(5 + 3 * number) for number in range(5)]
            return [each.token_ids for each in engine.generate(prompts, [*guided, free, function])]

    made: list[ThreadedDevice] = []
    expected = answers(_one_by_one(model))
    actual = answers(_ahead(model, padded=padded, made=made))

    assert actual == expected
    texts = [byte_tokenizer(VOCAB).decode(each) for each in actual]
    for number, text in enumerate(texts[:12]):
        assert re.fullmatch(forms[number // 4], text)
    assert made[0].num_masked > 10
    assert bool(begun) == (num_cpus > 1)
    llguidance._threads.cache_clear()


class Later(Matcher):
    """Allows everything, later; notes when, and the tokens that it was asked about."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events

    def fill(self, output_ids: Any, bits: Any) -> Any:
        self.events.append(("fill", output_ids.tolist()))
        bits[:] = 0xFF
        return bits

    @staticmethod
    def begin_all(jobs: Any, bits: Any) -> Any:
        for job in jobs:
            job.matcher.events.append(("begin", job.output_ids.tolist()))
        return lambda: fill_each(jobs, bits)

    def matcher(self, *_: Any) -> Matcher:
        return self


def _runner_and_steps(model: Model, grammar: Any) -> tuple[Runner, list[StepPlan]]:
    """Return a runner of one row, and steps of a guided sequence, then of another in its row."""
    ops = CpuOps()
    resolved = _parts(model, lambda *_: None, 40, 1).resolved
    runner = _ahead(model)(bind(lower(model.decoder), ops, model.checkpoint.reader), ops, resolved)
    greedy, spans = SamplingParams(temperature=0), tuple(range(20))
    new = NewSequence(1, prompt(5), greedy, 0, grammar=grammar)
    after = NewSequence(2, prompt(9), greedy, 0, grammar=grammar)
    return runner, [
        StepPlan(1, (Slice(1, 0, 5, 4, True),), (new,), (TableUpdate(1, 0, 0, spans),)),
        StepPlan(2, (Slice(1, 5, 6, 5, True),)),
        StepPlan(3, (Slice(1, 6, 7, 6, True),)),
        StepPlan(
            4, (Slice(2, 0, 9, 8, True),), (after,), (TableUpdate(2, 0, 0, spans),), finished=(1,)
        ),
    ]


def test_masks_are_begun_when_tokens_are_known_and_awaited_before_the_next_launch(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = watch(ThreadedDevice, Answer, monkeypatch)
    runner, steps = _runner_and_steps(model, Later(order.events))

    first, second = runner.start(steps[0]), runner.start(steps[1])
    [a] = first().tokens
    order.events.append(("apply", 0))
    third = runner.start(steps[2])
    [b] = second().tokens
    order.events.append(("apply", 1))
    third()
    runner.close()

    assert order.events == [
        *[("launch", 0), ("begin", []), ("fill", []), ("launch", 1), ("read", 0)],
        *[("begin", [a]), ("apply", 0), ("fill", [a]), ("launch", 2), ("read", 1)],
        *[("begin", [a, b]), ("apply", 1), ("fill", [a, b]), ("read", 2)],
    ]


def test_masks_in_flight_are_of_the_sequence_that_leaves_its_row_to_another(model: Model) -> None:
    events: list[Any] = []
    runner, steps = _runner_and_steps(model, Later(events))

    first, second = runner.start(steps[0]), runner.start(steps[1])
    [a] = first().tokens
    fourth = runner.start(steps[3])
    second()
    fourth()
    runner.close()

    asked = [[], [a], []]
    assert [ids for kind, ids in events if kind == "begin"] == asked
    assert [ids for kind, ids in events if kind == "fill"] == asked


def test_a_runner_that_closes_waits_for_masks_in_flight(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Any] = []
    runner, steps = _runner_and_steps(model, Later(events))
    close = ThreadedDevice.close
    monkeypatch.setattr(
        ThreadedDevice, "close", lambda device: events.append("closed") or close(device)
    )

    runner.start(steps[0])
    runner.close()

    assert events == [("begin", []), ("fill", []), "closed"]


def test_a_step_from_which_nothing_is_sampled_has_an_outcome(model: Model) -> None:
    parts = _parts(model, _ahead(model), 40, 2)  # steps of 24 tokens
    with Engine(parts) as engine:
        [answer] = engine.generate([prompt(60)], SamplingParams(max_tokens=2, ignore_eos=True))

    assert len(answer.token_ids) == 2


def test_what_one_step_brings_for_a_row_does_not_overlap(model: Model) -> None:
    """A token that the host drew for a request that left, and the prompt of the next in its row."""
    ops = CpuOps()
    resolved = _parts(model, lambda *_: None, 40, 1).resolved
    bound = bind(lower(model.decoder), ops, model.checkpoint.reader)
    runner = _ahead(model)(bound, ops, resolved)
    told = SamplingParams(logprobs=0, processed_logprobs=True)
    spans = tuple(range(20))
    first = StepPlan(
        1,
        (Slice(1, 0, 5, 4, True),),
        (NewSequence(1, tuple(prompt(5)), told, 0),),
        (TableUpdate(1, 0, 0, spans),),
    )
    second = StepPlan(
        2,
        (Slice(2, 0, 9, 8, True),),
        (NewSequence(2, tuple(prompt(9)), SamplingParams(), 0),),
        (TableUpdate(2, 0, 0, spans),),
        finished=(1,),
    )

    assert runner.start(first)().tokens[0] is not None
    assert runner.start(second)().tokens[0] is not None
    runner.close()


class ShortDevice(ThreadedDevice):
    """A device that lacks memory for some of its launches."""

    short: frozenset[int] = frozenset()

    def launch(self, batch: Batch, updates: Updates) -> Answer:
        if self.num_launches not in self.short:
            return super().launch(batch, updates)
        self._mirror.sync(batch, updates)
        self.num_launches += 1
        self._writes = []
        self._mirror.reset()
        raise NoMemory(batch.num_tokens, 0)


@pytest.mark.parametrize("first", [0, 3, 8])
def test_a_step_without_memory_ends_its_requests_and_no_others(model: Model, first: int) -> None:
    expected = _joined(_answers(_parts(model, _one_by_one(model), 400, 5)))
    made: list[ThreadedDevice] = []
    parts = _parts(model, _ahead(model, made=made, kind=ShortDevice), 400, 5)
    made[0].short = frozenset({first, first + 1, first + 4})

    with Engine(parts) as engine:
        got = [list(queue) for _, queue in _start_all(engine)]
        again = [list(queue) for _, queue in _start_all(engine)]  # nothing wrong was kept

    errors = [[output.error for output in outputs if output.error] for outputs in got]
    assert 0 < sum(map(bool, errors)) < len(errors)
    for error in chain.from_iterable(errors):
        assert isinstance(error, NoMemory)
        assert "no memory for a step" in str(error)
    for found, outputs, whole in zip(errors, got, expected, strict=True):
        if not found:  # of several choices, some may have ended before
            assert _joined([list(_choices(outputs))]) == [whole]
    assert _joined([list(_choices(outputs)) for outputs in again]) == expected


def test_frequencies_that_change_with_the_length_are_those_of_every_sequence(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = _model("phi3 longrope", tmp_path_factory.mktemp("longrope"))
    expected = _answers(_parts(model, _one_by_one(model), 400, 8))

    actual = _answers(_parts(model, _ahead(model), 400, 8))

    assert _joined(actual) == _joined(expected)
