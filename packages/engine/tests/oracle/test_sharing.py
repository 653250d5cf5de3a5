"""Whole engines: prefixes shared by requests, and preemption."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from answers import check, greedily
from cases import ALL, Case
from oracle import prompt
from spaninfer_engine.config import BackendName
from stepping import SPAN_LEN

PREEMPTED = ["llama3 rope", "llama dynamic", "qwen3_moe", "gemma3", "deepseek_v3", "minicpm3",
             "phi3 longrope", "bloom", "Qwen-1 long"]  # fmt: skip

Load = Callable[[str], Case]


@pytest.mark.parametrize("name", ALL)
def test_a_request_behind_a_shared_prefix_gives_tokens_of_the_oracle(name: str, load: Load) -> None:
    case = load(name)
    shared = prompt(case.prompt_len - 18)
    first, second = ([*shared, *prompt(18, seed=seed)] for seed in (2, 3))

    with case.engine(step_tokens=64) as engine:
        answers = [engine.generate(token_ids, greedily(8)) for token_ids in (first, second, second)]

    found = [answer.usage.cached_len for answer in answers]
    assert found == [0, *(n // SPAN_LEN * SPAN_LEN for n in (len(shared), len(second) - 1))]
    for answer in answers:
        check(answer, case)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_equal_tokens_behind_another_beginning_are_computed_anew(name: str, load: Load) -> None:
    case = load(name)
    one, other, same = prompt(8, seed=1), prompt(8, seed=2), prompt(16, seed=3)
    prompts = [[*one, *same], [*other, *prompt(16, seed=4)], [*other, *same]]

    with case.engine() as engine:
        answers = [engine.generate(token_ids, greedily(8)) for token_ids in prompts]

    assert [answer.usage.cached_len for answer in answers] == [0, 0, len(other)]
    check(answers[-1], case)


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("name", PREEMPTED)
def test_a_request_that_gave_its_spans_up_gives_tokens_of_the_oracle(
    name: str, backend: BackendName, load: Load
) -> None:
    case = load(name)
    prompts = [prompt(6, seed=seed) for seed in range(6)]

    with case.engine(backend=backend, requests=1.2) as engine:
        answers = engine.generate(prompts, greedily(20))
        preemptions = engine.stats().preemptions

    assert preemptions > 0
    for answer in answers:
        check(answer, case)
