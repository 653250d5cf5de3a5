"""Whole engines on a GPU: graphs, padding, lookahead and GPU sampling change no token, except where
the two largest logits are closer than 16-bit rounding.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
import spaninfer_demo
from launch_order import watch
from spaninfer_engine import Completion, ConfigError, Engine, EngineConfig, SamplingParams
from spaninfer_engine.errors import NoMemory
from spaninfer_engine.startup.build import build

pytestmark = pytest.mark.gpu

PROMPTS = [
    *("Once upon a time", "Tell me a fable", "The old king", "A ship", "x"),
    "There was a fox who lived in the woods and never spoke a word to anybody. " * 6,
] * 4
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
VOCAB = 4224
DEVICE = "spaninfer_engine.backends.cuda.device.CudaDevice"
NEAR = 0.3  # between log-probabilities; in bfloat16 the bundled model's are off by up to 0.4


def answers(sampling: SamplingParams = GREEDY, **options: Any) -> list[Completion]:
    with Engine("demo", **{"backend": "cuda", "max_len": 512, **options}) as engine:
        return engine.generate(PROMPTS, sampling)


def assert_same(got: Sequence[Completion], expected: Sequence[Completion]) -> None:
    """Assert that tokens are equal up to where the expected one and its rival were near."""
    num_whole = 0
    for mine, theirs in zip(got, expected, strict=True):
        pairs = zip(mine.token_ids, theirs.token_ids, strict=True)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if at is None:
            num_whole += 1
            continue
        (_, first), (_, second) = theirs.logprobs[at].top[:2]
        assert first - second < NEAR, f"token {at}: {mine.token_ids[at]} is {first - second} off"
    assert num_whole >= len(got) // 2


def rms(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the root mean square of differences."""
    return math.sqrt(sum((a - b) ** 2 for a, b in pairs) / max(len(pairs), 1))


@pytest.fixture(scope="module")
def expected() -> list[Completion]:
    """Answers of the definitions' nearest relative: float32, step by step."""
    sampling = replace(GREEDY, logprobs=2)
    return answers(sampling, backend="torch", device="cuda", dtype="float32", memory=1 << 28)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("graphs", [False, True], ids=["one by one", "graphs"])
def test_greedy_tokens_are_those_of_the_torch_backend(
    expected: list[Completion], graphs: bool, dtype: str
) -> None:
    assert_same(answers(graphs=graphs, dtype=dtype), expected)


def test_nor_do_graphs_change_them_that_are_captured_while_nothing_runs(
    expected: list[Completion],
) -> None:
    with Engine("demo", backend="cuda", max_len=512, graphs=True, dtype="bfloat16") as engine:
        sleep(2)
        got = [engine.generate(prompt, GREEDY) for prompt in PROMPTS]  # each prompt alone

    assert_same(got, expected)


@pytest.mark.parametrize("graphs", [False, True], ids=["one by one", "graphs"])
def test_logits_of_equal_beginnings_are_near(expected: list[Completion], graphs: bool) -> None:
    got = answers(replace(GREEDY, logprobs=2), graphs=graphs, dtype="bfloat16")

    pairs = []
    for mine, theirs in zip(got, expected, strict=True):
        for one, other in zip(mine.logprobs, theirs.logprobs, strict=True):
            found = dict(one.top)
            pairs += [(found[token], value) for token, value in other.top if token in found]
            if one.token_id != other.token_id:
                break
    assert len(pairs) > len(PROMPTS) * 30
    assert rms(pairs) < 0.2


@pytest.mark.parametrize(
    "options", [{"max_running": 3}, {"memory": 3 << 20}, {"step_tokens": 64}], ids=str
)
def test_few_rows_few_spans_and_short_steps_change_nothing(
    expected: list[Completion], options: dict[str, int]
) -> None:
    assert_same(answers(dtype="bfloat16", **options), expected)


@pytest.mark.parametrize(
    "options",
    [{"graphs": False}, {"step_tokens": 16}, {"memory": 3 << 20}, {"prefix_cache": False}],
    ids=str,
)
def test_nothing_changes_a_bit_where_rows_do_not_depend_on_each_other(
    options: dict[str, int],
) -> None:
    sampling = SamplingParams(
        top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.3, n=2, seed=4, max_tokens=40,
        logprobs=2, prompt_logprobs=1,
    )  # fmt: skip
    invariant = {"dtype": "bfloat16", "batch_invariant": True}

    got, expected = answers(sampling, **invariant, **options), answers(sampling, **invariant)

    for mine, theirs in zip(got, expected, strict=True):
        assert (mine.token_ids, mine.text) == (theirs.token_ids, theirs.text)
        assert mine.logprobs == theirs.logprobs
        assert mine.prompt_logprobs == theirs.prompt_logprobs


@pytest.mark.parametrize(
    "options", [{"graphs": True}, {"graphs": False, "max_running": 3}], ids=["graphs", "few rows"]
)
def test_all_kernels_are_compiled_before_the_first_step_and_none_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    news: dict[str, set[Path]] = {}  # what is compiled when a stage ends

    def progress(stage: str, done: int, total: int) -> None:
        if done == total:
            news[f"{done} {stage}"] = set(tmp_path.rglob("*.bin"))

    config = EngineConfig(model="demo", backend="cuda", max_len=512, dtype="bfloat16", **options)
    with Engine(build(config, progress)) as engine:
        engine.generate(PROMPTS, replace(GREEDY, logprobs=2, repetition_penalty=1.1))
        sleep(2)  # graphs are captured
        engine.generate(PROMPTS, GREEDY)
        for length in (1, 9, 20, 40, 60, 100, 200, 300, 400, 500):
            sampling = SamplingParams(max_tokens=2, prompt_logprobs=1 if length < 200 else None)
            engine.generate([*range(300, 300 + length)], sampling)
    again: set[str] = set()
    build(config, lambda stage, *_numbers: again.add(stage)).runner.close()

    stages = {stage: files for stage, files in news.items() if stage.endswith("kernels")}
    compiled = set().union(*stages.values())
    counted = sum(int(stage.partition(" ")[0]) for stage in stages)  # of decoder and tower
    assert len(compiled) - 1 == counted  # one stands in for those that are not there yet
    assert set(tmp_path.rglob("*.bin")) == compiled
    assert ("graphs" in again) is options["graphs"]
    assert "kernels" not in again


def test_a_start_that_finds_only_some_of_its_kernels_samples_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokens(cache: Path) -> tuple[int, ...]:
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))  # each knows its own kernels only
        with Engine("demo", backend="cuda", max_len=512, graphs=True, dtype="bfloat16") as engine:
            return engine.generate("Once upon a time", GREEDY).token_ids

    def kernels(cache: Path) -> list[Path]:
        return sorted(file.relative_to(cache) for file in cache.rglob("*.bin"))

    expected, all_kernels = tokens(tmp_path / "all"), kernels(tmp_path / "all")

    for part in range(2):
        half = tmp_path / f"half {part}"
        for file in all_kernels[part::2]:
            (half / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tmp_path / "all" / file, half / file)
        assert tokens(half) == expected
        assert kernels(half) == all_kernels


def test_a_step_without_memory_ends_its_requests_and_the_engine_goes_on(
    expected: list[Completion],
) -> None:
    import torch

    options = {"dtype": "bfloat16", "max_len": 512, "memory": 1 << 26, "graphs": False}
    with Engine("demo", backend="cuda", prefix_cache=False, **options) as engine:
        engine.generate(PROMPTS, GREEDY)
        torch.cuda.empty_cache()
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
        try:
            with pytest.raises(NoMemory, match=r"no memory for a step of \d+ tokens"):
                engine.generate(PROMPTS, GREEDY)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        engine.sync()
        got = engine.generate(PROMPTS, GREEDY)

    assert_same(got, expected)


def test_a_closed_engine_gives_weights_and_spans_back() -> None:
    import torch

    memory = 1 << 28
    weights = (spaninfer_demo.path() / "model.safetensors").stat().st_size  # in bfloat16
    with Engine("demo", backend="cuda", dtype="bfloat16", max_len=512, memory=memory) as engine:
        engine.generate("Once", GREEDY)
        held = torch.cuda.memory_allocated()

    given_back = held - torch.cuda.memory_allocated()  # `engine` is still here
    assert given_back > 0.98 * (memory + weights)


@pytest.mark.parametrize(
    "wishes",
    [
        {"temperature": 0.7, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "seed": 5},
        {"temperature": 0, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
        {"temperature": 0, "presence_penalty": 0.5, "no_repeat_ngram": 3},
        {"temperature": 0.8, "seed": 2, "logit_bias": {300: 4.0, 301: -3.0}, "top_k": 20},
        {"temperature": 0, "bad_words": (" the", " was a"), "logit_bias": {302: 1.0}},
        {"temperature": 0, "min_tokens": 20, "stop_ids": tuple(range(300, 340))},
        {"temperature": 0.9, "typical_p": 0.4, "seed": 3},
        {"typical_p": 0.8, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 8},
    ],
    ids=[
        *("cuts", "penalties", "n-grams", "biases", "bad words", "late end"),
        *("typical", "typical beside cuts"),
    ],
)
def test_tokens_sampled_on_the_gpu_are_those_that_the_host_samples(
    wishes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = SamplingParams(**wishes, max_tokens=30, ignore_eos=True)

    invariant = {"dtype": "bfloat16", "batch_invariant": True}  # steps are cut in other ways

    on_gpu = answers(sampling, **invariant)
    monkeypatch.setattr(f"{DEVICE}.can_sample", lambda *_: False)
    on_host = answers(sampling, **invariant)

    # Equal prompts have equal answers here: one of the six may come to a tie, of which 32 bits on
    # the GPU and 64 on the host make different things.
    same = [a.token_ids == b.token_ids for a, b in zip(on_gpu, on_host, strict=True)]
    assert sum(same) >= len(PROMPTS) - 4


@pytest.mark.parametrize("masked", [False, True], ids=["all tokens", "masked"])
def test_log_probabilities_of_the_gpu_are_those_of_the_host(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = SamplingParams(
        temperature=0.7, seed=5, logprobs=3, processed_logprobs=True, prompt_logprobs=2,
        repetition_penalty=1.2, max_tokens=12, ignore_eos=True,
        mask=(lambda _: np.arange(VOCAB) % 3 > 0) if masked else None,
    )  # fmt: skip
    invariant = {"dtype": "bfloat16", "batch_invariant": True}

    got = answers(sampling, **invariant)
    monkeypatch.setattr(f"{DEVICE}.can_sample", lambda *_: False)
    monkeypatch.setattr(f"{DEVICE}.reports_prompts", False)
    expected = answers(sampling, **invariant)

    for mine, theirs in zip(got, expected, strict=True):
        pairs = list(zip(mine.prompt_logprobs, theirs.prompt_logprobs, strict=True))
        if mine.token_ids == theirs.token_ids:
            pairs += zip(mine.logprobs, theirs.logprobs, strict=True)
        for one, other in pairs:
            assert (one.token_id, one.rank) == (other.token_id, other.rank)
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert [i for i, _ in one.top] == [i for i, _ in other.top]


def test_log_probabilities_come_with_every_token_and_every_prompt() -> None:
    sampling = SamplingParams(temperature=0, logprobs=2, prompt_logprobs=1, max_tokens=12)
    with Engine("demo", backend="cuda", dtype="bfloat16", max_len=512) as engine:
        got = engine.generate(PROMPTS[:6], sampling)
    with Engine("demo", backend="cpu", memory=1 << 28) as engine:
        expected = engine.generate(PROMPTS[:6], sampling)

    for mine, theirs in zip(got, expected, strict=True):
        assert len(mine.logprobs) == len(mine.token_ids)
        assert len(mine.prompt_logprobs) == len(mine.prompt_ids) - 1
        about = list(zip(mine.prompt_logprobs, theirs.prompt_logprobs, strict=True))
        assert [one.token_id for one, _ in about] == [other.token_id for _, other in about]
        assert rms([(one.logprob, other.logprob) for one, other in about]) < NEAR


def test_a_request_for_more_memory_than_there_is_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"--memory is 1,024.0 GiB, and .* GiB of the device's"):
        answers(memory=1 << 40)


def _same_parity(output_ids: Any) -> Any:
    """Allow the ids that follow the last one by an even number; all at the beginning."""
    if not len(output_ids):
        return None
    return (np.arange(VOCAB) - output_ids[-1]) % 2 == 0


@pytest.mark.parametrize("graphs", [False, True], ids=["one by one", "graphs"])
def test_masks_limit_those_that_have_one_and_no_others(graphs: bool) -> None:
    masked = [
        replace(GREEDY, mask=_same_parity),
        replace(GREEDY, mask=_same_parity, temperature=1.0, repetition_penalty=1.2, seed=1),
        replace(GREEDY, mask=_same_parity, logprobs=1),
    ]
    with Engine("demo", backend="cuda", max_len=512, graphs=graphs, dtype="bfloat16") as engine:
        alone = engine.generate(PROMPTS[:9], replace(GREEDY, logprobs=2))
        beside = engine.generate([*PROMPTS[:9]] * 2, [*masked, *masked, *masked, *[GREEDY] * 9])

    assert_same(beside[9:], alone)
    for answer in beside[:9]:
        assert len(answer.token_ids) == 40
        assert len({token % 2 for token in answer.token_ids}) == 1


@pytest.mark.parametrize("graphs", [False, True], ids=["one by one", "graphs"])
def test_the_step_behind_a_masked_one_is_launched_before_its_result_is_read(
    graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask depends on the tokens so far; the next forward pass begins without it."""
    from spaninfer_engine.backends.cuda.device import CudaDevice
    from spaninfer_engine.backends.cuda.launched import CudaStep

    sampling = replace(GREEDY, mask=_same_parity)
    with Engine("demo", backend="cuda", max_len=512, graphs=graphs, dtype="bfloat16") as engine:
        order = watch(CudaDevice, CudaStep, monkeypatch)
        answers = engine.generate(PROMPTS[:4], sampling)

    assert all(len({token % 2 for token in answer.token_ids}) == 1 for answer in answers)
    assert len(order.steps) >= GREEDY.max_tokens
    assert sum(order.ahead) >= len(order.ahead) - 2  # requests began, or ended, in between
