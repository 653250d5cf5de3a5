"""Prompts in one piece and in chunks, and the tokens sampled after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from cases import ALL, NUM_DRAWN, ONCE, Case
from oracle import TOLERANCE, deviation, prompt, tolerance_of

Load = Callable[[str], Case]

EDGES = (0, 64, 100, 128, 256)
"""Where something changes: windows, trained lengths, the parts in which a CPU reads a context.

For models with short prompts that may be anywhere in them.
"""
NEAR, BETWEEN = 8, 16


def pieces(length: int, chunk: int) -> Iterator[int]:
    """How many positions of a prompt each step computes: `chunk`, but more far from all edges."""
    done = 0
    while done < length:
        edges = (*EDGES, length - NEAR)
        is_near = length < EDGES[1] or any(abs(done - edge) <= NEAR for edge in edges)
        ahead = min(edge for edge in (*EDGES, length) if edge > done)
        count = chunk if is_near else max(chunk, min(BETWEEN, ahead - NEAR - done))
        yield min(count, length - done)
        done += count


@pytest.mark.parametrize("name", [*ALL, *ONCE])
def test_an_oracle_is_sure_of_its_tokens_and_does_not_repeat_itself(name: str, load: Load) -> None:
    """Else equal tokens would say little; find_seeds.py finds a seed that tells more."""
    golden = load(name).golden()

    assert golden.margin > 10 * TOLERANCE
    assert len(set(golden.tokens)) >= NUM_DRAWN // 2


@pytest.mark.parametrize(
    ("backend", "chunk"),
    [
        *(("cpu", chunk) for chunk in (1, 3, 16, 300)),
        *(("torch", chunk) for chunk in (13, 300)),
        *(pytest.param("torch", chunk, marks=pytest.mark.sweep) for chunk in (1, 3)),
    ],
)
@pytest.mark.parametrize("name", ALL)
def test_a_prompt_in_chunks_gives_logits_and_tokens_of_the_oracle(
    name: str, backend: str, chunk: int, load: Load
) -> None:
    """The CPU's kernels are others for one row, a few and many. torch has one way for any number,
    with a context before it (chunks of 13) and without (300); tokens are drawn one by one behind
    both.
    """
    case = load(name)
    golden = case.golden()

    runner = case.model.on(backend, case.num_spans)
    runner.enter(1, golden.prompt)
    *counts, last = pieces(len(golden.prompt), chunk)
    for count in counts:
        runner.step((1, count, False))
    tokens = [*runner.step((1, last, True)).tokens]
    for _ in golden.tokens[1:]:
        tokens += runner.step((1, 1, True)).tokens

    logits = runner.logits(1)
    assert deviation(logits[: len(golden.prompt)], golden.logits) < TOLERANCE
    assert deviation(logits[-len(tokens) :], golden.drawn_from) < TOLERANCE
    assert tokens == golden.tokens


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("name", ONCE)
def test_a_prompt_and_what_is_sampled_behind_it_are_those_of_the_oracle(
    name: str, backend: str, load: Load
) -> None:
    case = load(name)
    golden = case.golden()

    runner = case.model.on(backend, case.num_spans)
    tokens = [runner.prefill(1, golden.prompt, chunk=case.prompt_len // 3 + 1)]
    for _ in golden.tokens[1:]:
        tokens += runner.step((1, 1, True)).tokens

    tolerance = tolerance_of(name)
    assert deviation(runner.logits(1)[: len(golden.prompt)], golden.logits) < tolerance
    assert tokens == golden.tokens


@pytest.mark.parametrize(
    ("backend", "chunk"), [("cpu", 1), ("cpu", 7), ("torch", 3), ("torch", 300), ("reference", 23)]
)
@pytest.mark.parametrize(
    ("name", "times"), [("qwen3_next", 2), ("qwen3_5", 2), ("qwen3_5_moe", 2), ("deepseek_v32", 1)]
)
def test_a_prompt_in_chunks_gives_logits_where_states_are_kept_or_keys_selected(
    name: str, times: int, backend: str, chunk: int, load: Load
) -> None:
    case = load(name)
    golden = case.golden()

    runner = case.model.on(backend, case.num_spans)
    runner.prefill(1, golden.prompt, chunk=chunk)

    assert deviation(runner.logits(1), golden.logits) < times * TOLERANCE


@pytest.mark.parametrize("name", ["llama3 rope", "gemma3", "deepseek_v3", "phi3 longrope", "bloom"])
def test_the_reference_gives_logits_of_the_oracle(name: str, load: Load) -> None:
    case = load(name)
    golden = case.golden()

    runner = case.model.on("reference")
    runner.prefill(1, golden.prompt, chunk=100)

    assert deviation(runner.logits(1), golden.logits) < TOLERANCE


def test_alibi_is_right_at_the_end_of_a_long_prompt(load: Load) -> None:
    """Falcon rounds slope * position to bfloat16, which shows behind some hundred tokens."""
    case = load("falcon rw")
    token_ids = prompt(1100)

    runner = case.model.on("cpu", num_spans=300)
    runner.prefill(1, token_ids, chunk=256)

    assert deviation(runner.logits(1), case.oracle.logits(token_ids)) < TOLERANCE


def test_spans_given_back_serve_another_request(load: Load) -> None:
    case = load("gemma3")
    runner = case.model.on("cpu", num_spans=12)

    for seq_id in range(4):
        runner.prefill(seq_id, prompt(30, seed=seq_id), chunk=8)
        runner.leave(seq_id)

    expected = case.oracle.logits(prompt(30, seed=3))
    assert deviation(runner.logits(3), expected) < TOLERANCE
