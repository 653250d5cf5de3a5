"""Models with quantised weights against the definition of the same quantisation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from cases import SMALL, Case
from noise import DENSE, ROUTED, rms
from oracle import prompt

WIDE = [name for name in (*DENSE, *ROUTED) if name.startswith("wide ")]
MOST = {"int8": 0.5, "int4": 0.05, "iq4_nl": 0.05}
"""What tipped codes may make, as a part of what coding costs; a token may be routed elsewhere."""
EXACT, COARSE = 1e-5, 2e-4
"""What is left of logits where no code tips; gelu is within 2e-5 where its results become codes,
which changes scales of groups whose largest number it is.
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in (*SMALL, *WIDE) for kind in ("int8", "int4")),
        *((name, "iq4_nl") for name in WIDE),
    ],
)
def test_quantised_models_agree_with_the_definition(
    name: str, kind: str, load: Callable[[str], Case]
) -> None:
    """Sums in another order tip an activation's code now and then: that is all that differs.

    A tipped code is an error like that of coding, so some remains; rows without one are exact.
    Prompts, whose attention and products may be of bfloat16, lose a tenth more at most. A token
    that is routed elsewhere says nothing about rounding, so with experts the median of three
    prompts counts.
    """
    case = load(name)
    golden = case.golden()
    exact = case.model.on(f"reference {kind}", case.num_spans)
    runner = case.model.on(f"cpu {kind}", case.num_spans)

    exact.prefill(1, golden.prompt, chunk=300)  # each step codes all weights anew
    runner.prefill(1, golden.prompt, chunk=1)  # more are multiplied by rounded numbers on some CPUs

    lost = rms(exact.logits(1) - golden.logits)
    difference = runner.logits(1) - exact.logits(1)
    most = COARSE if name.startswith("falcon") else EXACT
    assert min(map(rms, difference)) < most * rms(golden.logits)
    assert rms(difference) < (0.5 if name in ROUTED else MOST[kind]) * lost
    seeds = (1, 2, 3) if _has_experts(case) else (1,)
    assert np.median([_prompt_loss(case, kind, seed) for seed in seeds]) < 1.1


def _has_experts(case: Case) -> bool:
    return any("expert" in key for key in case.oracle.model.config.to_dict())


def _prompt_loss(case: Case, kind: str, seed: int) -> float:
    """What a prompt in one step loses, in parts of what the definition does."""
    ids = prompt(case.prompt_len, seed)
    logits = case.oracle.logits(ids)
    lost = []
    for backend in (f"cpu {kind}", f"reference {kind}"):
        stepper = case.model.on(backend, case.num_spans)
        stepper.prefill(1, ids, chunk=300)
        lost.append(rms(stepper.logits(1) - logits))
    return lost[0] / lost[1]
