"""Requests of different lengths in one step, started at different times."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cases import ALL, Case
from oracle import TOLERANCE, deviation, prompt

NUM_DRAWN = 6


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("name", ALL)
def test_requests_in_one_step_do_not_disturb_each_other(
    name: str, backend: str, load: Callable[[str], Case]
) -> None:
    case = load(name)
    lengths = {1: case.prompt_len // 6, 2: case.prompt_len // 2, 3: case.prompt_len // 3}
    goldens = {i: case.golden(prompt(n, seed=i), NUM_DRAWN) for i, n in lengths.items()}

    runner = case.model.on(backend, 2 * case.num_spans)
    drawn = {1: [runner.prefill(1, goldens[1].prompt, chunk=300)]}
    drawn[2] = [runner.prefill(2, goldens[2].prompt, chunk=7)]
    drawn[3] = []
    runner.enter(3, goldens[3].prompt)
    parts = [(1, 1, True), (2, 1, True), (3, lengths[3], True)]  # a prefill beside decodes
    for _ in range(NUM_DRAWN):
        result = runner.step(*parts)
        for (seq_id, _, _), token in zip(parts, result.tokens, strict=True):
            drawn[seq_id].append(token)
        parts = [(i, 1, True) for i in (3, 1, 2) if len(drawn[i]) < NUM_DRAWN]

    for seq_id, golden in goldens.items():
        rows = runner.logits(seq_id)[-NUM_DRAWN:]
        assert deviation(rows, golden.drawn_from) < TOLERANCE
        assert drawn[seq_id] == golden.tokens


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("name", ["qwen3_next", "deepseek_v32"])
def test_a_prompt_in_two_chunks_beside_decodes_does_not_disturb_them(
    name: str, backend: str, load: Callable[[str], Case]
) -> None:
    case = load(name)
    lengths = {1: 31, 2: 40, 3: 3}
    goldens = {i: case.golden(prompt(n, seed=i), 4) for i, n in lengths.items()}

    runner = case.model.on(backend, 2 * case.num_spans)
    drawn = {1: [runner.prefill(1, goldens[1].prompt, chunk=300)], 2: [], 3: []}
    for seq_id in (2, 3):
        runner.enter(seq_id, goldens[seq_id].prompt)
    runner.step((2, 25, False))
    parts = [(1, 1, True), (2, 15, True), (3, 3, True)]
    for _ in range(3):
        for (seq_id, *_), token in zip(parts, runner.step(*parts).tokens, strict=True):
            drawn[seq_id].append(token)
        parts = [(i, 1, True) for i in (1, 2, 3)]

    for seq_id, golden in goldens.items():
        assert drawn[seq_id] == golden.tokens[: len(drawn[seq_id])]
