"""The cuda backend in 16 bits, and the torch backend on a CUDA device, beside the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from cases import ALL, NUM_DRAWN, ONCE, Case, Golden, Logits
from noise import DENSE, ROUTED, rms, typical
from oracle import deviation, tolerance_of
from spaninfer_engine import Completion, Engine, SamplingParams
from spaninfer_engine.backends.cuda.attention import latent_keys
from wide import WIDE

pytestmark = pytest.mark.gpu

Load = Callable[[str], Case]


@pytest.mark.parametrize("chunk", [16, 300])
@pytest.mark.parametrize("name", [*ALL, *ONCE])
def test_logits_and_tokens_are_the_oracles(name: str, chunk: int, load: Load) -> None:
    case = load(name)
    golden = case.golden()

    runner = case.model.on("torch cuda", case.num_spans)
    tokens = [runner.prefill(1, golden.prompt, chunk)]
    for _ in golden.tokens[1:]:
        tokens += runner.step((1, 1, True)).tokens

    logits, tolerance = runner.logits(1), tolerance_of(name)
    assert deviation(logits[: len(golden.prompt)], golden.logits) < tolerance
    assert deviation(logits[-len(tokens) :], golden.drawn_from) < tolerance
    assert tokens == golden.tokens


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", DENSE)
def test_the_error_of_16_bits_is_at_most_twice_that_of_the_oracle(
    name: str, dtype: str, load: Load
) -> None:
    torch = pytest.importorskip("torch")
    case = load(name)
    golden = case.golden()
    rounded = deepcopy(case.oracle.model).to("cuda", getattr(torch, dtype))
    with torch.no_grad():
        noisy = rounded(torch.tensor([golden.prompt], device="cuda")).logits[0].float().cpu()

    runner = case.model.on(f"torch cuda {dtype}", case.num_spans)
    runner.prefill(1, golden.prompt, chunk=16)

    assert rms(runner.logits(1) - golden.logits) < 2 * rms(noisy.numpy() - golden.logits)


# ---- backend cuda --------------------------------------------------------------------------------

KERNEL_SPAN_LEN = 16
IN_ENGINES_ROUTED = [
    *(name for name in ROUTED if name.startswith("wide ")),
    *("wide qwen2_moe", "wide qwen3_5_moe", "wide ernie4_5_moe", "wide llama4"),
    *("wide granitemoe", "wide granitemoeshared", "wide deepseek_v2", "wide deepseek_v2 lite"),
    *("wide kimi_k2", "wide deepseek_v32", "wide glm_moe_dsa"),  # nor do keys selected elsewhere
]
IN_ENGINES = [
    *(f"wide {name}" for name in WIDE if f"wide {name}" not in IN_ENGINES_ROUTED),
    *("falcon rw", "phi3 longrope", "Qwen-1 long", "opt 350m", "llama dynamic"),
]
"""Without experts, see `noise.DENSE`; with plain attention, and frequencies that change."""

EXPERTS = {"experts_add_rms_norm", "routed_experts"}
"""Steps that contain a choice of experts."""

Answered = tuple[Completion, Golden]


@dataclass(frozen=True)
class Rounded:
    """What the oracle says of tokens[T] in float32, and what it says in 16 bits: logits [T V]."""

    token_ids: list[int]
    exact: Logits
    noisy: Logits

    @property
    def noise(self) -> float:
        """The root mean square of what 16 bits cost the oracle."""
        return rms(self.noisy - self.exact)

    def check(self, logits: Logits, *, routed: bool) -> None:
        """Assert that logits are as near to float32 as the oracle's own in 16 bits, and choose the
        same tokens wherever their margin is larger than such errors.

        Where tokens are routed to experts, a few that go elsewhere say nothing about rounding: the
        typical row is compared, and no token. Of tiny models even that one may go elsewhere: 2.02
        times the oracle's error was seen (mixtral, H200).
        """
        error = typical if routed else rms
        noise = error(self.noisy - self.exact)
        assert error(logits - self.exact) < (2.25 if routed else 2) * noise
        best = np.sort(self.exact, axis=1)[:, -2:]
        clear = best[:, 1] - best[:, 0] > 8 * noise
        assert routed or (logits.argmax(1) == self.exact.argmax(1))[clear].all()


@pytest.fixture(scope="module")
def rounded(load: Load) -> Callable[[str, str], Rounded]:
    """Return the rounded oracle of a case: its prompt, and what it draws behind it."""

    @cache
    def of(name: str, dtype: str) -> Rounded:
        oracle, golden = load(name).oracle, load(name).golden()
        token_ids = [*golden.prompt, *golden.tokens]
        exact, noisy = oracle.logits(token_ids), oracle.rounded_logits(token_ids, dtype)
        return Rounded(token_ids, exact, noisy)

    return of


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("chunk", [3, 16, 300])
@pytest.mark.parametrize("name", [*ALL, *ONCE])
def test_prompts_in_chunks_and_single_tokens_are_as_near_as_the_oracle_in_16_bits(
    name: str, chunk: int, dtype: str, load: Load, rounded: Callable[[str, str], Rounded]
) -> None:
    case, oracle = load(name), rounded(name, dtype)
    runner = case.model.on(f"cuda {dtype}", case.num_spans, KERNEL_SPAN_LEN)

    runner.prefill_some(1, oracle.token_ids, case.prompt_len, chunk)
    for left in range(len(oracle.token_ids) - case.prompt_len, 0, -1):
        runner.step((1, 1, left == 1))  # behind the last one nothing is known

    oracle.check(runner.logits(1), routed=bool(EXPERTS & set(runner.steps)))
    if name.startswith("wide ") and name != "wide llama4":  # windows in chunks have no kernel
        assert "plain_attention" not in runner.steps


@pytest.mark.parametrize("chunk", [3, 16, 300])
def test_prompts_over_latents_may_read_new_tokens_by_keys_and_values(
    chunk: int,
    load: Load,
    rounded: Callable[[str, str], Rounded],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those of many tokens do; what was cached before is read so as well, in chunks, and what
    short prompts and decodes find cached absorbed.
    """
    monkeypatch.setattr(latent_keys, "MANY_TOKENS", 2)
    monkeypatch.setattr(latent_keys, "CHUNK_TOKENS", 64)
    case, oracle = load("wide deepseek_v3"), rounded("wide deepseek_v3", "bfloat16")
    runner = case.model.on("cuda bfloat16", 2 * case.num_spans, KERNEL_SPAN_LEN)
    whole = len(oracle.token_ids)

    runner.prefill_some(1, oracle.token_ids, case.prompt_len, chunk)
    runner.enter(2, oracle.token_ids)
    runner.step((1, 1, False), (2, whole // 2, False))
    runner.step((1, 1, False), (2, whole - whole // 2, True))

    assert "latent_attention" in runner.steps
    oracle.check(runner.logits(2), routed=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", [*ALL, *ONCE])
def test_requests_of_mixed_lengths_in_one_step_do_not_disturb_each_other(
    name: str, dtype: str, load: Load, rounded: Callable[[str, str], Rounded]
) -> None:
    case, oracle = load(name), rounded(name, dtype)
    runner = case.model.on(f"cuda {dtype}", 3 * case.num_spans, KERNEL_SPAN_LEN)
    half, whole = case.prompt_len // 2, len(oracle.token_ids)

    runner.prefill_some(1, oracle.token_ids, case.prompt_len, 300)
    runner.prefill_some(2, oracle.token_ids, half, 7)
    runner.enter(3, oracle.token_ids)
    runner.step((1, 1, False), (2, 1, False), (3, half, False))
    runner.step((2, 1, False), (3, 1, False), (1, 1, False))
    runner.step((1, 1, False), (3, whole - half - 1, True), (2, whole - half - 2, True))

    for seq_id in (2, 3):
        oracle.check(runner.logits(seq_id), routed=bool(EXPERTS & set(runner.steps)))


def _agree(tokens: Sequence[int], golden: Golden, noise: float) -> None:
    """Assert that tokens are the oracle's up to the first of which it is not sure."""
    for token, expected, logits in zip(tokens, golden.tokens, golden.drawn_from, strict=True):
        if token != expected:
            second, first = np.sort(logits)[-2:]
            assert first - second <= 8 * noise
            return


def _answers(
    case: Case, dtype: Any, graphs: bool, prompts: int = 2, logprobs: int | None = None
) -> list[Answered]:
    """Return what an engine draws behind so many prompts side by side, then behind the longest
    again, most of which is found in the cache; and what the oracle draws there.
    """
    lengths = [case.prompt_len * n // prompts for n in range(prompts, 0, -1)]
    golden = [case.golden(case.golden().prompt[:length]) for length in lengths]
    sampling = SamplingParams(
        temperature=0, max_tokens=NUM_DRAWN, ignore_eos=True, logprobs=logprobs
    )
    with case.engine(
        backend="cuda",
        dtype=dtype,
        graphs=graphs,
        span_len=KERNEL_SPAN_LEN,
        step_tokens=112,  # the end of one prompt and 36 rows of the other: few rows are wanted
    ) as engine:
        answers = engine.generate([each.prompt for each in golden], sampling)
        answers.append(engine.generate(golden[0].prompt, sampling))
    assert answers[-1].usage.cached_len > case.prompt_len // 2
    return list(zip(answers, (*golden, golden[0]), strict=True))


def _in_engines(names: Sequence[str], halves: Sequence[str]) -> Any:
    """Parametrise over models in bfloat16, with graphs and without, and some in float16."""
    cases = [(name, "bfloat16", graphs) for name in names for graphs in (True, False)]
    cases += [(name, "float16", True) for name in halves]
    ids = [f"{name} {dtype}{' graphs' * graphs}" for name, dtype, graphs in cases]
    return pytest.mark.parametrize(("name", "dtype", "graphs"), cases, ids=ids)


@_in_engines(IN_ENGINES, ["wide llama3", "wide gemma2", "wide bloom", "Qwen-1 long"])
def test_engines_draw_the_tokens_of_the_oracle_wherever_it_is_sure(
    name: str, dtype: str, graphs: bool, load: Load, rounded: Callable[[str, str], Rounded]
) -> None:
    noise = rounded(name, dtype).noise

    answers = _answers(load(name), dtype, graphs)

    for answer, golden in answers:
        _agree(answer.token_ids, golden, noise)


@_in_engines(IN_ENGINES_ROUTED, IN_ENGINES_ROUTED)
def test_engines_with_experts_are_as_near_to_the_oracle_as_its_own_16_bits(
    name: str, dtype: str, graphs: bool, load: Load, rounded: Callable[[str, str], Rounded]
) -> None:
    """Experts, latents and the products of single heads are captured here, too.

    Typical rows are compared, of the likeliest tokens, up to the first that is another one.
    """
    oracle = rounded(name, dtype)
    noise = typical(_logprobs(oracle.noisy) - _logprobs(oracle.exact))

    answers = _answers(load(name), dtype, graphs, prompts=4, logprobs=20)

    errors = []
    for answer, golden in answers:
        drawn = zip(answer.logprobs, golden.tokens, _logprobs(golden.drawn_from), strict=True)
        for mine, token_id, exact in drawn:
            errors.append(rms(np.array([logprob - exact[token] for token, logprob in mine.top])))
            if mine.token_id != token_id:
                break
    assert len(errors) >= NUM_DRAWN
    assert np.median(errors) < 2 * noise


def _logprobs(logits: Logits) -> Logits:
    """Return the log-probabilities of logits[T V]."""
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def test_requests_that_give_their_states_up_draw_the_tokens_of_the_oracle(
    load: Load, rounded: Callable[[str, str], Rounded]
) -> None:
    """Six requests, and memory for about two: 12 tokens of each would fit, 60 do not."""
    case, noise = load("qwen3_5"), rounded("qwen3_5", "bfloat16").noise
    golden = [case.golden(case.golden().prompt[:length], 60) for length in range(6, 12)]
    sampling = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)

    with case.engine(
        backend="cuda", dtype="bfloat16", span_len=KERNEL_SPAN_LEN, requests=1.2
    ) as engine:
        answers = engine.generate([each.prompt for each in golden], sampling)
        preemptions = engine.stats().preemptions

    assert preemptions > 0
    for answer, expected in zip(answers, golden, strict=True):
        _agree(answer.token_ids, expected, noise)


def test_an_engine_chooses_the_device_by_itself_and_answers_many_requests() -> None:
    sampling = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    prompts = ["Once upon a time", "Tell me a fable", "The old king", "A ship"] * 8
    with Engine("demo", dtype="float32", memory=1 << 28) as engine:
        on_gpu = engine.generate(prompts, sampling)
        assert (engine.resolved.backend, engine.resolved.device) == ("torch", "cuda")
    with Engine("demo", backend="cpu", device="cpu", memory=1 << 28) as engine:
        on_cpu = engine.generate(prompts, sampling)

    assert [answer.text for answer in on_gpu] == [answer.text for answer in on_cpu]
