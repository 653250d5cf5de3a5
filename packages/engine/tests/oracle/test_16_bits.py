"""Half precision is as near to float32 as transformers is."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
from cases import Case
from noise import DENSE, ROUTED, rms, typical


@pytest.mark.parametrize("backend", ["torch bfloat16", "torch float16", "cpu bfloat16"])
@pytest.mark.parametrize("name", DENSE)
def test_the_error_of_16_bits_is_at_most_twice_that_of_the_oracle(
    name: str, backend: str, load: Callable[[str], Case]
) -> None:
    torch = pytest.importorskip("torch")
    case = load(name)
    golden = case.golden()
    rounded = deepcopy(case.oracle.model).to(getattr(torch, backend.split()[1]))
    with torch.no_grad():
        noisy = rounded(torch.tensor([golden.prompt])).logits[0].float().numpy()

    runner = case.model.on(backend, case.num_spans)
    runner.prefill(1, golden.prompt, chunk=16)

    assert rms(runner.logits(1) - golden.logits) < 2 * rms(noisy - golden.logits)


@pytest.mark.parametrize("name", [name for name in ROUTED if name != "mixtral"])
def test_a_typical_row_of_a_model_with_experts_is_as_near(
    name: str, load: Callable[[str], Case]
) -> None:
    """A token that is routed elsewhere says nothing about rounding; small Mixtral's twelfth stands
    between two experts, and all behind it see which it takes.
    """
    case = load(name)
    golden = case.golden()
    noisy = case.oracle.rounded_logits(golden.prompt, "bfloat16")

    runner = case.model.on("cpu bfloat16", case.num_spans)
    runner.prefill(1, golden.prompt, chunk=16)

    error = typical(runner.logits(1)[: len(golden.prompt)] - golden.logits)
    assert error < 2 * typical(noisy - golden.logits)
