"""Requests that fail inside a step: they end alone, and their neighbours' tokens do not change.

Failures are planted where they come from: in weights, and in the mask of a caller.
run/test_sampler.py and run/test_runner.py plant others.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from random_llama import write_model
from safetensors.numpy import load_file, save_file
from spaninfer_engine import Engine, FinishReason, NoToken, SamplingParams

POISON = 77
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
DRAWN = SamplingParams(max_tokens=12, temperature=1.0, seed=7, ignore_eos=True)
PROMPTS = [[5, 6, 7], [9] * 40, [100, 3], list(range(200, 290))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose embedding of one token is NaN: whoever sees it has logits of NaN."""
    folder = tmp_path_factory.mktemp("models") / "poisoned"
    write_model(folder, 2, np.float32)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    weights["model.embed_tokens.weight"][POISON] = np.nan
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    return folder


@pytest.fixture(scope="module", params=["reference", "cpu"])
def running(request: pytest.FixtureRequest, folder: Path):
    """An engine whose KV cache is so small that later requests get the spans of earlier ones."""
    with Engine(folder, backend=request.param, memory=16 << 20, max_running=8) as engine:
        yield engine


def answers(engine: Engine, sampling: SamplingParams, *beside: tuple[list[int], SamplingParams]):
    """Return what all prompts are answered while other requests run, and the ends of these."""
    started = [engine.start_request(prompt, params)[1] for prompt, params in beside]
    queues = [engine.start_request(prompt, sampling)[1] for prompt in PROMPTS]
    found = [[token for output in queue for token in output.token_ids] for queue in queues]
    return found, [list(queue)[-1] for queue in started]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_who_meets_weights_of_nan_ends_alone(running: Engine, sampling: SamplingParams) -> None:
    expected, _ = answers(running, sampling)
    poisoned = [([8, POISON, 8, 8], GREEDY), ([POISON] * 70, DRAWN), ([4] * 64 + [POISON], GREEDY)]

    for _ in range(5):  # behind them, others get their spans
        found, ends = answers(running, sampling, *poisoned)

        assert found == expected
        assert [end.finish_reason for end in ends] == [FinishReason.ERROR] * 3
        assert {type(end.error) for end in ends} == {NoToken}
    assert running.stats().running == 0


class Panic(BaseException):
    """As libraries in Rust raise."""


@pytest.mark.parametrize(
    "failure", [ZeroDivisionError("mask"), Panic("mask")], ids=["error", "panic"]
)
def test_a_mask_that_raises_ends_its_request_alone(running: Engine, failure) -> None:
    def mask(output_ids):
        if len(output_ids) == 3:
            raise failure
        return None

    expected, _ = answers(running, DRAWN)
    bad = SamplingParams(max_tokens=12, mask=mask, ignore_eos=True)
    found, [end] = answers(running, DRAWN, ([1, 2], bad))

    assert found == expected
    assert "mask" in str(end.error)
