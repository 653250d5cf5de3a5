"""Guided requests on a GPU: answers keep to their grammar, other requests are unaffected, and the
next step is launched before the last one is read.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from launch_order import watch
from spaninfer_engine import Completion, Engine, SamplingParams, StructuredOutput

pytest.importorskip("llguidance")
pytestmark = pytest.mark.gpu

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
FORM = StructuredOutput(json_schema=PERSON)
ENDLESS = StructuredOutput(json_schema={"type": "array", "minItems": 200, "items": PERSON})
PROMPTS = ["Once upon a time", "Tell me a fable", "The old king", "A ship"] * 2
DRAWN: dict[str, Any] = {"temperature": 1.0, "seed": 7}
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    DRAWN,
    {**DRAWN, "top_k": 20, "repetition_penalty": 1.2},
    {**DRAWN, "logprobs": 2},
)
INVARIANT: dict[str, Any] = {"dtype": "bfloat16", "batch_invariant": True}


def opened(**options: Any) -> Engine:
    return Engine("demo", **{"backend": "cuda", "max_len": 512, **options})


def keeps_to(engine: Engine, form: StructuredOutput, answer: Completion) -> bool:
    """Return whether each token is allowed in its turn, by a matcher on the CPU of its own."""
    matcher = engine.compile_grammar(form).matcher(tuple(engine.tokenizer.eos_ids), 0)
    ids, bits = (
        np.array(answer.token_ids, np.int32),
        np.zeros(-(-engine.vocab_size // 32) * 4, np.uint8),
    )
    for position, token in enumerate(ids):
        matcher.fill(ids[:position], bits)
        if not bits[token // 8] >> token % 8 & 1:
            return False
    return True


def check_person(text: str) -> None:
    person = json.loads(text)
    assert list(person) == ["name", "age", "tags"]
    assert re.fullmatch("[a-z]{1,6}", person["name"])
    assert 0 <= person["age"] <= 99
    assert len(person["tags"]) <= 3
    assert {*person["tags"]} <= {"a", "b"}


@pytest.mark.parametrize("graphs", [False, True], ids=["one by one", "graphs"])
def test_guided_and_free_requests_share_steps_without_touching_each_other(graphs: bool) -> None:
    free = [SamplingParams(max_tokens=60, ignore_eos=True, **kind) for kind in (*KINDS, *KINDS)]
    guided = [SamplingParams(max_tokens=120, structured=FORM, **kind) for kind in KINDS]
    with opened(graphs=graphs, **INVARIANT) as engine:
        alone = engine.generate(PROMPTS, free)
        beside = engine.generate([*PROMPTS, *PROMPTS[:4]], [*free, *guided])

        assert [each.token_ids for each in beside[:8]] == [each.token_ids for each in alone]
        for answer in beside[8:]:
            assert answer.finish_reason.value == "stop"
            assert keeps_to(engine, FORM, answer)
            check_person(answer.text)


def test_an_answer_that_is_cut_is_the_beginning_of_its_form() -> None:
    cut = [SamplingParams(max_tokens=90, structured=ENDLESS, **kind) for kind in KINDS]
    with opened(**INVARIANT) as engine:
        for answer in engine.generate(PROMPTS[:4], cut):
            assert answer.finish_reason.value == "length"
            assert len(answer.token_ids) == 90
            assert keeps_to(engine, ENDLESS, answer)


def test_greedy_tokens_are_those_of_the_torch_backend_while_no_rival_is_near() -> None:
    near = 0.3  # between log-probabilities: 16 bits beside 32
    sampling = SamplingParams(temperature=0, max_tokens=120, structured=FORM, logprobs=2,
                              processed_logprobs=True)  # fmt: skip
    with opened(dtype="bfloat16") as engine:
        got = engine.generate(PROMPTS[:4], sampling)
    with opened(backend="torch", device="cuda", dtype="float32", memory=1 << 28) as engine:
        expected = engine.generate(PROMPTS[:4], sampling)

    for mine, theirs in zip(got, expected, strict=True):
        pairs = zip(mine.token_ids, theirs.token_ids, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if at is None:
            assert mine.token_ids == theirs.token_ids
        else:
            (_, first), (_, second) = theirs.logprobs[at].top[:2]
            assert first - second < near, f"token {at} is {first - second} off"


@pytest.mark.parametrize("graphs", [False, True], ids=["one by one", "graphs"])
def test_steps_of_guided_requests_are_launched_before_the_last_one_is_read(
    graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spaninfer_engine.backends.cuda.device import CudaDevice
    from spaninfer_engine.backends.cuda.launched import CudaStep

    guided = SamplingParams(max_tokens=60, structured=ENDLESS, **DRAWN)
    free = SamplingParams(max_tokens=60, ignore_eos=True)
    with opened(graphs=graphs, dtype="bfloat16") as engine:
        order = watch(CudaDevice, CudaStep, monkeypatch)
        answers = engine.generate(PROMPTS, [guided, free] * 4)

        assert all(keeps_to(engine, ENDLESS, answer) for answer in answers[::2])
    assert len(order.steps) >= 60
    assert sum(order.ahead) >= len(order.ahead) - 2  # requests began, or ended, in between
