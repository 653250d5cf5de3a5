"""Half precision is as near to float32 as transformers is."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
from cases import Case
from noise import DENSE, rms


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
