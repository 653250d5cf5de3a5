"""Half precision against float32: at most as far away as transformers' half precision."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
from cases import ALL, Case
from noise import DENSE, ROUTED, rms, typical

SURE = {"mixtral": 11}
"""Rows: its twelfth token stands between two experts, and all behind it see which it takes."""


@pytest.mark.parametrize("backend", ["torch bfloat16", "torch float16"])
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


@pytest.mark.parametrize("name", ALL)
def test_the_cpu_s_error_of_bfloat16_is_smaller_than_that_of_the_oracle(
    name: str, load: Callable[[str], Case]
) -> None:
    """Of models with experts that of a typical row: a token that is routed elsewhere says nothing
    about rounding.
    """
    case = load(name)
    golden = case.golden()
    noisy = case.oracle.rounded_logits(golden.prompt, "bfloat16")
    size = typical if name in ROUTED else rms

    runner = case.model.on("cpu bfloat16", case.num_spans)
    runner.prefill(1, golden.prompt, chunk=16)

    rows = SURE.get(name, len(golden.prompt))
    error, allowed = (logits[:rows] - golden.logits[:rows] for logits in (runner.logits(1), noisy))
    assert size(error) < size(allowed)
