"""Structured output and callers' masks through whole engines, on every backend without a GPU."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import END, byte_tokenizer
from families import FAMILIES
from numpy.typing import NDArray
from oracle import Oracle
from spaninfer_engine.aio import AsyncEngine
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.engine import Engine
from spaninfer_engine.errors import InvalidGrammar, InvalidSampling, NoToken
from spaninfer_engine.request.request import FinishReason, Matcher, SamplingParams
from spaninfer_engine.request.structured import StructuredOutput
from spaninfer_engine.startup.build import build

pytest.importorskip("llguidance")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,6}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
BACKENDS = ["reference", "cpu", "torch"]


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(FAMILIES["qwen3"], seed=3)


@pytest.fixture(scope="module")
def folder(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return oracle.save(tmp_path_factory.mktemp("model"))


def opened(folder: Any, backend: str = "cpu", **options: Any) -> Engine:
    """Return an engine of a tiny random model whose tokens are bytes."""
    if backend == "torch":
        pytest.importorskip("torch")
    asked = EngineConfig(model=folder, backend=backend, device="cpu", **options)
    made = build(asked)
    tokenizer = byte_tokenizer(made.model.vocab)
    return Engine(replace(made, tokenizer=tokenizer, end_ids=frozenset({END})))


def prompt(number: int) -> list[int]:
    return list(f"request {number}: ".encode())


@pytest.mark.parametrize("backend", BACKENDS)
def test_guided_and_free_requests_share_steps_without_touching_each_other(
    folder: Any, backend: str
) -> None:
    free = [SamplingParams(max_tokens=40, seed=number) for number in range(3)]
    guided = [
        SamplingParams(structured=StructuredOutput(json_schema=PERSON), seed=1, temperature=1.5),
        SamplingParams(structured=StructuredOutput(json_schema=PERSON), temperature=0),
        SamplingParams(structured=StructuredOutput(json_schema=PERSON), logprobs=2, top_p=0.9),
        SamplingParams(
            structured=StructuredOutput(json_schema=PERSON), repetition_penalty=1.2, seed=2,
            frequency_penalty=0.5, min_p=0.01,
        ),
        SamplingParams(structured=StructuredOutput(json_schema=PERSON), min_tokens=30, seed=8),
    ]  # fmt: skip
    with opened(folder, backend) as engine:
        alone = [engine.generate(prompt(i), each).token_ids for i, each in enumerate(free)]
        together = engine.generate([prompt(i) for i in range(8)], [*free, *guided])

    assert [each.token_ids for each in together[:3]] == alone
    for answer in together[3:]:
        value = json.loads(answer.text)
        assert re.fullmatch("[a-z]{1,6}", value["name"])
        assert 0 <= value["age"] <= 99
        assert set(value["tags"]) <= {"a", "b"}
        assert (answer.finish_reason, answer.token_ids[-1]) == (FinishReason.STOP, END)
    assert len(together[7].token_ids) > 30
    assert len(together[5].logprobs) == len(together[5].token_ids)


def letters_and_digits(output_ids: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Allow letters at even places and digits at odd ones, none that was there before."""
    allowed = np.zeros(FAMILIES["qwen3"].config_json()["vocab_size"], np.bool_)
    allowed[list(b"0123456789" if len(output_ids) % 2 else b"abcdefghijklmnop")] = True
    allowed[output_ids] = False
    return allowed


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_of_the_tokens_so_far_limits_its_requests_and_no_others(
    folder: Any, oracle: Oracle, backend: str
) -> None:
    """Greedily the most likely allowed tokens of transformers; sampled, tokens it allows."""
    masked = SamplingParams(mask=letters_and_digits, max_tokens=20, ignore_eos=True)
    free = [SamplingParams(max_tokens=20, seed=number) for number in range(2)]
    limited = [
        replace(masked, temperature=0),
        replace(masked, temperature=1.5, seed=1),
        replace(masked, temperature=0.9, top_p=0.8, repetition_penalty=1.3, seed=2),
        replace(masked, temperature=0, logprobs=2),
    ]
    with opened(folder, backend) as engine:
        alone = [engine.generate(prompt(i), each).token_ids for i, each in enumerate(free)]
        together = engine.generate([prompt(i) for i in range(6)], [*free, *limited])

    assert [each.token_ids for each in together[:2]] == alone
    for answer in together[2:]:
        assert re.fullmatch("([a-p][0-9]){10}", answer.text)
        assert len({*answer.token_ids}) == 20
    for number, answer in ((2, together[2]), (5, together[5])):
        ids = list(prompt(number))
        for _ in range(20):
            allowed = letters_and_digits(np.array(ids[len(prompt(number)) :], np.int32))
            ids.append(int(np.where(allowed, oracle.logits(ids)[-1], -np.inf).argmax()))
        assert list(answer.token_ids) == ids[len(prompt(number)) :]
    assert len(together[5].logprobs) == 20


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_that_raises_or_allows_nothing_ends_its_request_alone(
    folder: Any, backend: str
) -> None:
    def broken(output_ids: NDArray[np.int32]) -> None:
        if len(output_ids) == 3:
            raise KeyError("a mask of a caller")

    def empty(output_ids: NDArray[np.int32]) -> NDArray[np.bool_] | None:
        return np.zeros_like(letters_and_digits(output_ids)) if len(output_ids) == 2 else None

    with opened(folder, backend) as engine:
        expected = engine.generate(prompt(9), max_tokens=12, seed=4, ignore_eos=True)
        handles = [
            engine.start_request(prompt(i), mask=each, max_tokens=12, ignore_eos=True)[0]
            for i, each in enumerate((broken, empty))
        ]
        beside = engine.generate(prompt(9), max_tokens=12, seed=4, ignore_eos=True)
        engine.sync()
        ends = [[each for each in handle.queue if each.finish_reason] for handle in handles]

    (raised,), (ran_dry,) = ends
    assert "a mask of a caller" in str(raised.error)
    assert isinstance(ran_dry.error, NoToken)
    assert beside.token_ids == expected.token_ids


def test_choices_of_one_request_follow_the_grammar_each_by_itself(folder: Any) -> None:
    pattern = "[a-f]{3}(x|[0-9]{1,20})"
    with opened(folder) as engine:
        sampling = SamplingParams(n=8, seed=1, structured=StructuredOutput(regex=pattern))
        answers = engine.generate([prompt(1)], sampling)
        alone = [
            engine.generate(prompt(1), replace(sampling, n=1, seed=1 + index)) for index in range(8)
        ]

    assert all(re.fullmatch(pattern, each.text) for each in answers)
    assert len({each.text for each in answers}) > 4
    assert [each.token_ids for each in answers] == [each.token_ids for each in alone]


def test_preempted_sequences_go_on_where_they_were(folder: Any) -> None:
    sampling = SamplingParams(structured=StructuredOutput(regex="[a-z]{60}[0-9]{20}"))
    each = [replace(sampling, seed=number) for number in range(6)]
    with opened(folder) as engine:
        expected = [engine.generate(prompt(i), item).text for i, item in enumerate(each)]
    made = build(EngineConfig(model=folder, backend="cpu", device="cpu", span_len=4, max_len=128))
    few = replace(made.resolved, num_spans=(60,) * len(made.resolved.num_spans))
    tokenizer = byte_tokenizer(made.model.vocab)
    parts = replace(made, tokenizer=tokenizer, end_ids=frozenset({END}), resolved=few)
    with Engine(parts) as engine:
        answers = engine.generate([prompt(i) for i in range(6)], each)
        assert engine.stats().preemptions > 0

    assert [answer.text for answer in answers] == expected


def test_stop_strings_end_a_guided_answer_early(folder: Any) -> None:
    with opened(folder) as engine:
        answer = engine.generate(prompt(1), regex="a{5}b{5}", stop="b")

    assert (answer.text, answer.matched) == ("aaaaa", "b")


def test_an_answer_that_is_complete_ends_although_it_is_too_short(folder: Any) -> None:
    with opened(folder) as engine:
        answer = engine.generate(prompt(1), choice=["yes", "no"], min_tokens=50)

    assert answer.text in ("yes", "no")
    assert answer.finish_reason is FinishReason.STOP


def test_a_grammar_that_other_parameters_leave_no_token_fails_alone(folder: Any) -> None:
    with opened(folder) as engine:
        stuck = engine.start_request(prompt(1), regex="b+", bad_words=["b"])[0]
        beside = engine.start_request(prompt(2), regex="[0-9]{9}")[0]
        engine.sync()
        (output,) = [each for each in stuck.queue if each.finish_reason]
        assert isinstance(output.error, NoToken)
        assert len("".join(each.text for each in beside.queue)) == 9


class Failing(Matcher):
    """A matcher that runs into a limit behind five tokens."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, output_ids: Any, bits: Any) -> Any:
        if len(output_ids) == 5:
            raise InvalidGrammar("regex", "it failed at token 5: too many items")
        return self._matcher.fill(output_ids, bits)


def test_a_matcher_that_fails_on_the_way_ends_its_sequence_alone(folder: Any) -> None:
    with opened(folder) as engine:
        grammar = engine.compile_grammar(StructuredOutput(regex="[a-z]{30}"))
        start = grammar.matcher

        def started(end_ids: Any, min_tokens: int) -> Any:
            matcher = start(end_ids, min_tokens)
            return Failing(matcher) if min_tokens == 3 else matcher

        grammar.matcher = started  # type: ignore[attr-defined]
        bad = engine.start_request(prompt(1), regex="[a-z]{30}", min_tokens=3)[0]
        good = engine.start_request(prompt(1), regex="[a-z]{30}", seed=4)[0]
        engine.sync()
        outputs = list(bad.queue)
        assert isinstance(outputs[-1].error, InvalidGrammar)
        assert sum(len(each.token_ids) for each in outputs) == 5
        assert len("".join(each.text for each in good.queue)) == 30


def test_what_cannot_be_compiled_is_refused_before_it_waits(folder: Any) -> None:
    with opened(folder) as engine:
        with pytest.raises(InvalidGrammar, match=r"'not' at \$\.properties\.a\.not"):
            engine.generate(prompt(1), json_schema={"properties": {"a": {"not": {}}}})
        with pytest.raises(InvalidSampling, match="ignore_eos"):
            engine.generate(prompt(1), regex="a", ignore_eos=True)
        assert engine.generate(prompt(1), regex="ab").text == "ab"


def test_tasks_get_guided_answers_as_they_come(folder: Any) -> None:
    import asyncio

    async def drive() -> str:
        async with AsyncEngine(opened(folder)) as engine:
            stream = engine.generate(prompt(1), regex="[a-z]{20}")
            return "".join([output.text async for output in stream])

    assert re.fullmatch("[a-z]{20}", asyncio.run(drive()))
