"""Models with recurrent states (Qwen3-Next, Qwen3.5): computed, shared and evicted.

In float32, against transformers. A prompt of 40 tokens leaves a snapshot at its end, rounded down
to a span of 4 tokens: behind token 36.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from answers import check, greedily
from cases import Case
from oracle import prompt
from spaninfer_engine import Engine, SamplingParams
from spaninfer_engine.cache.memory_plan import STATES_PER_REQUEST
from spaninfer_engine.config import BackendName
from stepping import SPAN_LEN

Load = Callable[[str], Case]

MODELS = ["qwen3_next", "qwen3_5", "qwen3_5_moe"]
BACKENDS = ["cpu", "torch"]


@pytest.mark.parametrize("name", ["wide qwen3_next", "wide qwen3_5"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_long_prompt_gives_tokens_and_logits_of_the_oracle(
    name: str, backend: BackendName, load: Load
) -> None:
    """Chunks of 64 tokens of heads of 128 channels, in steps that do not begin where they do."""
    case = load(name)
    golden = case.golden()

    with case.engine(backend=backend, span_len=32, step_tokens=90) as engine:
        answer = engine.generate(golden.prompt, greedily(12))

    assert list(answer.token_ids) == golden.tokens


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", ["cpu", "torch", "reference"])
def test_greedy_answers_are_those_of_the_oracle(
    name: str, backend: BackendName, load: Load
) -> None:
    case = load(name)
    lengths = (40, 5, 17, 33)
    prompts = [prompt(length, seed=seed) for seed, length in enumerate(lengths)]

    with case.engine(backend=backend) as engine:
        answers = engine.generate(prompts, greedily(12))

    for given, answer in zip(prompts, answers, strict=True):
        assert list(answer.token_ids) == case.golden(given, 12).tokens


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_prefix_is_found_where_an_earlier_prompt_left_a_snapshot(
    backend: BackendName, load: Load
) -> None:
    case = load("qwen3_5")
    first = prompt(26)
    longer = [*first, *prompt(12, seed=2)]
    branching = [*first[:20], *prompt(12, seed=3)]

    with case.engine(backend=backend, step_tokens=64) as engine:
        asked = (first, longer, branching, longer, first)
        answers = [engine.generate(token_ids, greedily(8)) for token_ids in asked]

    at_the_end = [(len(ids) - 1) // SPAN_LEN * SPAN_LEN for ids in (first, longer)]
    found = [answer.usage.cached_len for answer in answers]
    assert found == [0, at_the_end[0], 0, at_the_end[1], at_the_end[0]]
    for answer in answers:
        check(answer, case)


def test_a_conversation_goes_on_behind_the_prompt_of_its_last_turn(load: Load) -> None:
    case = load("qwen3_5")
    turn = prompt(18)

    with case.engine() as engine:
        first = engine.generate(turn, greedily(10))
        second = engine.generate([*turn, *first.token_ids, *prompt(6, seed=4)], greedily(8))

    assert second.usage.cached_len == (len(turn) - 1) // SPAN_LEN * SPAN_LEN
    check(second, case)


def test_without_a_prefix_cache_none_is_found(load: Load) -> None:
    case = load("qwen3_5")

    with case.engine(prefix_cache=False) as engine:
        answers = [engine.generate(prompt(26), greedily(6)) for _ in range(2)]

    assert [answer.usage.cached_len for answer in answers] == [0, 0]
    for answer in answers:
        check(answer, case)


@pytest.mark.parametrize("backend", BACKENDS)
def test_requests_that_give_their_states_up_give_tokens_of_the_oracle(
    backend: BackendName, load: Load
) -> None:
    case = load("qwen3_5")
    prompts = [prompt(6, seed=seed) for seed in range(6)]

    with case.engine(backend=backend, requests=2.1) as engine:
        answers = engine.generate(prompts, greedily(60))
        preemptions = engine.stats().preemptions

    assert preemptions > 0
    for answer in answers:
        check(answer, case)


def test_choices_share_their_prompt_and_a_cancelled_request_frees_its_state(load: Load) -> None:
    case = load("qwen3_5")
    token_ids = prompt(21)

    with case.engine() as engine:
        given_up = engine.start_request(prompt(30, seed=9), greedily(20))
        engine.release(given_up[0])
        sampling = SamplingParams(n=3, max_tokens=6, temperature=0.0, ignore_eos=True)
        choices = engine.generate([token_ids], sampling)
        cached = [choice.usage.cached_len for choice in choices]
        stats = engine.stats()

    wanted = case.golden(token_ids, 6).tokens
    assert [list(choice.token_ids) for choice in choices] == [wanted] * 3
    assert sorted(cached) == [0, 20, 20]
    assert stats.running == 0


def test_log_probabilities_of_a_prompt_are_those_of_the_oracle(load: Load) -> None:
    """No prefix is taken for them: every position is computed."""
    case = load("qwen3_5")
    token_ids = prompt(20)
    sampling = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True, prompt_logprobs=0)

    with case.engine() as engine:
        answers = [engine.generate(token_ids, sampling) for _ in range(2)]

    for answer in answers:
        assert len(answer.prompt_logprobs) == len(token_ids) - 1
        assert list(answer.token_ids) == case.golden(token_ids, 2).tokens


def test_snapshots_come_back_from_host_memory_and_disk(load: Load, tmp_path: Path) -> None:
    case = load("qwen3_5")
    first, *others = (prompt(case.prompt_len, seed=seed) for seed in range(4))
    tiers = {"kv_offload": "8MiB", "kv_disk": tmp_path / "spans", "requests": 1.5}

    with case.engine(**tiers) as engine:
        for token_ids in (first, *others):
            engine.generate(token_ids, greedily(2))
        from_host = engine.generate(first, greedily(8))
    with case.engine(**tiers) as engine:
        from_disk = engine.generate(first, greedily(8))

    assert from_host.usage.cached_len == from_disk.usage.cached_len == 36
    check(from_host, case)
    check(from_disk, case)


def test_the_memory_of_states_is_counted(load: Load) -> None:
    case = load("qwen3_5")
    states, keys = case.model.decoder.groups

    assert states.state is not None
    assert keys.state is None
    with case.engine(requests=3) as engine:
        assert isinstance(engine, Engine)
        assert engine.resolved.num_spans[0] == 3 * STATES_PER_REQUEST
        rows = {row.what: row for row in engine.resolved.decisions}
        assert rows["states"].value == str(3 * STATES_PER_REQUEST)
