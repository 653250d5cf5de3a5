"""Whole engines on a device that computes by itself: the same answers as step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from families import FAMILIES
from host_device import Answer, HostDevice
from oracle import Oracle, prompt
from spaninfer_engine.config import Resolved
from spaninfer_engine.engine import Engine
from spaninfer_engine.errors import NoMemory
from spaninfer_engine.ops.cpu import CpuOps
from spaninfer_engine.ops.cuda_forms import Forms
from spaninfer_engine.ops.device import Launch
from spaninfer_engine.parts import Parts
from spaninfer_engine.plan import Entry, Growth, Slice, StepPlan
from spaninfer_engine.request import SamplingParams
from spaninfer_engine.run.claim import bind
from spaninfer_engine.run.lower import lower
from spaninfer_engine.run.overlap import OverlappedRunner
from spaninfer_engine.run.rotary import Rotary
from spaninfer_engine.run.runner import Runner
from spaninfer_engine.run.sample import Sampler
from spaninfer_engine.spec.nodes import ropes
from spaninfer_engine.text.template import ChatTemplate
from spaninfer_engine.text.wordless import wordless_tokenizer
from stepping import Model

SPAN_LEN = 4
MAX_LEN = 96

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
    )  # fmt: skip
    return Parts(
        resolved=resolved,
        decoder=decoder,
        runner=make_runner(bound, ops, resolved),
        tokenizer=wordless_tokenizer(decoder.vocab, [2]),
        template=ChatTemplate(None, origin="m", special_tokens={}, controls=[]),
        sampling=SamplingParams(),
        end_ids=frozenset({2}),
    )


def _one_by_one(model: Model) -> Any:
    def make(bound: Any, ops: Any, resolved: Resolved) -> Runner[Any]:
        return Runner(
            bound, ops, Sampler(), model.decoder, span_len=SPAN_LEN,
            num_spans=resolved.num_spans, max_len=MAX_LEN, max_running=resolved.max_running,
        )  # fmt: skip

    return make


def _overlapped(
    model: Model,
    *,
    knows_angles: bool = True,
    forms: bool = False,
    made: Any = None,
    kind: type[HostDevice] = HostDevice,
) -> Any:
    def make(bound: Any, ops: Any, resolved: Resolved) -> OverlappedRunner:
        device = kind(
            bound, ops, model.decoder, num_rows=resolved.max_running,
            num_spans=resolved.num_spans, span_len=SPAN_LEN, max_len=MAX_LEN,
            knows_angles=knows_angles,
            forms=Forms(resolved.max_running, 64) if forms else None,
        )  # fmt: skip
        if made is not None:
            made.append(device)
        rotaries = [None if knows_angles else Rotary(rope) for rope in ropes(model.decoder)]
        return OverlappedRunner(
            device, Sampler(), rotaries, num_groups=len(model.decoder.groups),
            span_len=SPAN_LEN, max_len=MAX_LEN, max_running=resolved.max_running,
        )  # fmt: skip

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


@pytest.mark.parametrize("forms", [False, True], ids=["as they are", "padded"])
@pytest.mark.parametrize(
    ("num_spans", "max_running"),
    [(400, 32), (400, 3), (60, 12)],
    ids=["plenty", "few rows", "few spans"],
)
def test_answers_are_those_of_a_runner_that_goes_step_by_step(
    model: Model, num_spans: int, max_running: int, forms: bool
) -> None:
    expected = _answers(_parts(model, _one_by_one(model), num_spans, max_running))
    made: list[HostDevice] = []

    actual = _answers(
        _parts(model, _overlapped(model, forms=forms, made=made), num_spans, max_running)
    )

    assert _joined(actual) == _joined(expected)
    assert any(form.prompts for form in made[0].forms) is forms


@pytest.mark.parametrize(("num_spans", "max_running"), [(60, 12), (24, 3)])
def test_choices_that_make_way_get_the_answers_of_those_that_never_do(
    model: Model, num_spans: int, max_running: int
) -> None:
    expected = _answers(_parts(model, _one_by_one(model), 400, 32))

    actual = _answers(_parts(model, _overlapped(model), num_spans, max_running))

    assert _joined(actual) == _joined(expected)


def test_a_step_from_which_nothing_is_drawn_has_an_outcome(model: Model) -> None:
    parts = _parts(model, _overlapped(model), 40, 2)  # steps of 24 tokens
    with Engine(parts) as engine:
        [answer] = engine.generate([prompt(60)], SamplingParams(max_tokens=2, ignore_eos=True))

    assert len(answer.token_ids) == 2


def test_what_one_step_brings_for_a_row_does_not_overlap(model: Model) -> None:
    """A token that the host drew for a request that left, and the prompt of the next in its row."""
    ops = CpuOps()
    resolved = _parts(model, lambda *_: None, 40, 1).resolved
    bound = bind(lower(model.decoder), ops, model.checkpoint.reader)
    runner = _overlapped(model)(bound, ops, resolved)
    told = SamplingParams(logprobs=0, processed_logprobs=True)
    spans = tuple(range(20))
    first = StepPlan(
        1,
        (Slice(1, 0, 5, 4, True),),
        (Entry(1, tuple(prompt(5)), told, 0),),
        (Growth(1, 0, 0, spans),),
    )
    second = StepPlan(
        2,
        (Slice(2, 0, 9, 8, True),),
        (Entry(2, tuple(prompt(9)), SamplingParams(), 0),),
        (Growth(2, 0, 0, spans),),
        left=(1,),
    )

    assert runner.start(first)().tokens[0] is not None
    assert runner.start(second)().tokens[0] is not None
    runner.close()


class ShortDevice(HostDevice):
    """A device that lacks memory for some of its launches."""

    short: frozenset[int] = frozenset()

    def launch(self, launch: Launch) -> Answer:
        if len(self.launches) not in self.short:
            return super().launch(launch)
        self.launches.append(launch)
        self._news = []
        raise NoMemory(launch.rows, 0)


@pytest.mark.parametrize("first", [0, 3, 8])
def test_a_step_without_memory_ends_its_requests_and_no_others(model: Model, first: int) -> None:
    expected = _joined(_answers(_parts(model, _one_by_one(model), 400, 5)))
    made: list[HostDevice] = []
    parts = _parts(model, _overlapped(model, made=made, kind=ShortDevice), 400, 5)
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


def test_angles_that_change_with_the_length_come_from_the_host(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = _model("phi3 longrope", tmp_path_factory.mktemp("longrope"))
    expected = _answers(_parts(model, _one_by_one(model), 400, 8))

    actual = _answers(_parts(model, _overlapped(model, knows_angles=False), 400, 8))

    assert _joined(actual) == _joined(expected)
