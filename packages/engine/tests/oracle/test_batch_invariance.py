"""Batch invariance: neighbours, chunking and prefix cache hits change no bit of a request's logits,
in models with biases, windows, softcaps, shared heads and experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import Case
from oracle import prompt
from spaninfer_engine import Completion, ConfigError, Engine, SamplingParams

pytestmark = pytest.mark.gpu

Load = Callable[[str], Case]

SPAN_LEN = 16
RUNNING = 65
SAMPLING = SamplingParams(temperature=0, max_tokens=64, logprobs=20, ignore_eos=True)
OTHERS = [prompt(length)[::-1] for length in np.random.default_rng(0).integers(1, 400, 64)]


def engine_of(case: Case, **options: Any) -> Engine:
    given = {"batch_invariant": True, "step_tokens": 512, "max_running": RUNNING}
    given |= {"requests": RUNNING, **options}
    return case.engine(backend="cuda", dtype="bfloat16", span_len=SPAN_LEN, **given)


def said(answer: Completion) -> list[tuple[tuple[int, float], ...]]:
    """Return the likeliest tokens at every place: their log-probabilities hold all logits."""
    assert len(answer.logprobs) == SAMPLING.max_tokens
    return [entry.top for entry in answer.logprobs]


@pytest.mark.parametrize("graphs", [False, True], ids=["one by one", "graphs"])
@pytest.mark.parametrize(
    ("name", "quantize"),
    [
        *((name, None) for name in ("wide llama3", "wide qwen2 7 to 1", "wide gemma2")),
        *((name, "w4afp8") for name in ("wide llama3", "wide qwen2 7 to 1")),
        ("wide mixtral", None),
    ],
)
def test_no_bit_of_a_request_depends_on_what_runs_beside_it(
    name: str, quantize: str | None, graphs: bool, load: Load
) -> None:
    case = load(name)
    mine = case.golden().prompt
    with engine_of(case, quantize=quantize, graphs=False, prefix_cache=False) as engine:
        alone = said(engine.generate(mine, SAMPLING))

    with engine_of(case, quantize=quantize, graphs=graphs) as engine:
        assert said(engine.generate(mine, SAMPLING)) == alone
        again = engine.generate(mine, SAMPLING)
        assert again.usage.cached_len > 0
        assert said(again) == alone
        beside_three = engine.generate([*OTHERS[:3], mine], SAMPLING)
        assert said(beside_three[-1]) == alone
    with engine_of(case, quantize=quantize, graphs=graphs, step_tokens=96) as engine:
        for place in (0, 40):
            batch = [*OTHERS[:place], mine, *OTHERS[place:]]
            answers = engine.generate(batch, SAMPLING)
            assert said(answers[place]) == alone


def test_nor_do_its_samples_when_it_makes_way_for_others_and_comes_back(load: Load) -> None:
    case = load("wide llama3")
    drawn = replace(SAMPLING, temperature=0.9, top_p=0.9, seed=5)
    prompts = [case.golden().prompt, *OTHERS[:15]]
    with engine_of(case, graphs=False) as engine:
        alone = [engine.generate(each, drawn) for each in prompts]

    with engine_of(case, requests=3) as engine:
        together = engine.generate(prompts, drawn)
        assert engine.stats().preemptions > 0

    assert list(map(said, together)) == list(map(said, alone))
    assert [it.token_ids for it in together] == [it.token_ids for it in alone]


@pytest.mark.parametrize("name", ["wide deepseek_v3", "falcon rw"])
def test_models_without_such_kernels_are_refused_by_name(name: str, load: Load) -> None:
    with pytest.raises(ConfigError, match="batch_invariant"):
        engine_of(load(name))
