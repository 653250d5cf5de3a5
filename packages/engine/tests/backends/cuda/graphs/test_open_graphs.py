"""Steps with log-probabilities of prompts: graphs without an end, beside launches one by one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import spaninfer_demo
from spaninfer_engine import Completion, Engine, SamplingParams
from spaninfer_engine.backends.cuda.graphs import step_graphs

pytestmark = pytest.mark.gpu

_CONFIG = json.loads((spaninfer_demo.path() / "config.json").read_text())
VOCAB = _CONFIG["text_config"]["vocab_size"]
LENGTHS = [40 + 13 * number for number in range(40)]
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"prompt_logprobs": 3},
    {"prompt_logprobs": 0, "logprobs": 2},
    {"prompt_logprobs": 20, "typical_p": 0.9, "frequency_penalty": 0.5},
    {"prompt_logprobs": 1, "mask": lambda ids: np.arange(VOCAB) % 3 != len(ids) % 3},
)


def _answers(needed: int) -> tuple[list[Completion], int]:
    """Return what an engine answers twice, and how often it replayed graphs without an end, which
    it captures once so many steps lacked them.
    """
    num_open = 0

    class Watched(step_graphs.StepGraphs):
        def find(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal num_open
            replay = super().find(*args, **kwargs)
            num_open += replay is not None and replay.shape.is_open
            return replay

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(step_graphs, "NEEDED_OPEN", needed)
        patched.setattr(step_graphs, "NEEDED_IDLE", 1 << 30)
        patched.setattr("spaninfer_engine.backends.cuda.device.StepGraphs", Watched)
        # Logits that depend on the batch would differ in their last bits.
        with Engine(
            spaninfer_demo.path(), backend="cuda", memory="1GiB", batch_invariant=True
        ) as engine:
            rng = np.random.default_rng(0)
            prompts = [rng.integers(5, 200, length).tolist() for length in LENGTHS]
            samplings = [
                SamplingParams(max_tokens=9, ignore_eos=True, seed=number, **WAYS[number % 5])
                for number in range(len(prompts))
            ]
            answers = engine.generate(prompts, samplings)
            engine.reset_prefix_cache()
            return answers + engine.generate(prompts, samplings), num_open


def test_graphs_without_an_end_give_the_same_bits() -> None:
    replayed, num_open = _answers(needed=1)
    launched, num_others = _answers(needed=1 << 30)

    assert (num_open > 0, num_others) == (True, 0)
    for mine, expected in zip(replayed, launched, strict=True):
        assert mine.token_ids == expected.token_ids
        assert list(mine.logprobs) == list(expected.logprobs)
        assert list(mine.prompt_logprobs) == list(expected.prompt_logprobs)
    for answer, length in zip(replayed, 2 * LENGTHS, strict=True):
        assert len(answer.prompt_logprobs) in (0, length - 1)
