"""Experts as transformers keeps them in memory: one tensor for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import FAMILIES
from oracle import TOLERANCE, Oracle, deviation, prompt
from stepping import Model

ROUTED = ["mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3"]


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("name", ROUTED)
def test_stacked_experts_give_logits_of_the_oracle(name: str, backend: str, tmp_path: Path) -> None:
    oracle = Oracle(FAMILIES[name], seed=3)
    oracle.model.save_pretrained(tmp_path, save_original_format=False)

    model = Model(tmp_path)
    runner = model.on(backend)
    runner.prefill(1, prompt(29), chunk=16)

    assert any("experts.gate_up_proj" in each for each in model.checkpoint.reader.names)
    assert deviation(runner.logits(1), oracle.logits(prompt(29))) < TOLERANCE
