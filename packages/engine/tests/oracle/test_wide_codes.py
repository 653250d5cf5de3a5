"""Decoders with weights and activations of 13 bits against transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from families import FAMILIES
from oracle import Oracle, prompt
from spaninfer_engine import Engine, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, logprobs=5, ignore_eos=True)


@pytest.mark.parametrize("name", ["qwen3", "mixtral"])
def test_log_probabilities_are_those_of_transformers_within_a_50th(
    name: str, tmp_path: Path
) -> None:
    """Of the logits' deviation, for as long as the same tokens are drawn."""
    oracle = Oracle(FAMILIES[name], seed=3)
    folder = oracle.save(tmp_path)
    prompts = [prompt(length, seed=length) for length in (3, 17, 40)]

    with Engine(
        folder, backend="cpu", device="cpu", dtype="float32", quantize="w13a13", memory=1 << 24
    ) as engine:
        answers = engine.generate(prompts, GREEDY)

    errors = []
    for token_ids, answer in zip(prompts, answers, strict=True):
        tokens, logits = oracle.generate(token_ids, 8)
        shifted = logits - logits.max(1, keepdims=True)
        exact = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        for mine, token_id, right in zip(answer.logprobs, tokens, exact, strict=True):
            errors += [abs(logprob - right[token]) / logits.std() for token, logprob in mine.top]
            if mine.token_id != token_id:
                break
    assert len(errors) > 5 * 16
    assert 1e-5 < np.median(errors) < 3e-3
    assert max(errors) < 2e-2
