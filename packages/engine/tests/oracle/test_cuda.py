"""The torch backend on a CUDA device: the same program and cache as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
from cases import ALL, Case
from noise import DENSE, rms
from oracle import TOLERANCE, deviation
from spaninfer_engine import Engine, SamplingParams

pytestmark = pytest.mark.gpu

Load = Callable[[str], Case]


@pytest.mark.parametrize("chunk", [16, 300])
@pytest.mark.parametrize("name", ALL)
def test_logits_and_tokens_are_the_oracles(name: str, chunk: int, load: Load) -> None:
    case = load(name)
    golden = case.golden()

    runner = case.model.on("torch cuda", case.num_spans)
    tokens = [runner.prefill(1, golden.prompt, chunk)]
    for _ in golden.tokens[1:]:
        tokens += runner.step((1, 1, True)).tokens

    logits = runner.logits(1)
    assert deviation(logits[: len(golden.prompt)], golden.logits) < TOLERANCE
    assert deviation(logits[-len(tokens) :], golden.drawn_from) < TOLERANCE
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


def test_an_engine_chooses_the_device_by_itself_and_answers_many_requests() -> None:
    sampling = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    prompts = ["Once upon a time", "Tell me a fable", "The old king", "A ship"] * 8
    with Engine("demo", dtype="float32", memory=1 << 28) as engine:
        on_gpu = engine.generate(prompts, sampling)
        assert (engine.resolved.backend, engine.resolved.device) == ("torch", "cuda")
    with Engine("demo", backend="cpu", device="cpu", memory=1 << 28) as engine:
        on_cpu = engine.generate(prompts, sampling)

    assert [answer.text for answer in on_gpu] == [answer.text for answer in on_cpu]
