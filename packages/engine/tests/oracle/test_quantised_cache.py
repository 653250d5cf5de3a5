"""What codes in place of 16-bit keys and values change, on stories that the bundled model tells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from spaninfer_engine import Engine, SamplingParams
from spaninfer_engine.build import locate
from stepping import Model

pytestmark = pytest.mark.gpu

MOST = {"fp8": 1e-3, "int8": 1e-3, "uint4": 1e-2}  # nats per token
DECODED = 50  # tokens that are computed one by one


@pytest.fixture(scope="module")
def stories() -> tuple[tuple[int, ...], ...]:
    """Return tokens drawn as the model would have them: what it was trained on looks like this."""
    sampling = SamplingParams(temperature=1.0, max_tokens=240, seed=1)
    with Engine("demo", backend="cpu", device="cpu", memory=1 << 28) as engine:
        answers = engine.generate(["Once upon a time", "The old king", "A ship"], sampling)
    return tuple((*answer.prompt_ids, *answer.token_ids) for answer in answers)


def _logprobs(model: Model, token_ids: tuple[int, ...], kv_dtype: Any) -> NDArray[np.float64]:
    """Return the log-probabilities [T V] of a prompt in chunks, then token by token."""
    runner = model.on("cuda bfloat16", 60, 16, kv_dtype)
    runner.prefill_some(1, token_ids, len(token_ids) - DECODED, 64)
    for left in range(DECODED, 0, -1):
        runner.step((1, 1, left == 1))
    logits = runner.logits(1).astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


@pytest.mark.parametrize("kv_dtype", MOST)
def test_codes_change_the_distribution_of_the_next_token_little(
    kv_dtype: str, stories: tuple[tuple[int, ...], ...], record_property: Any
) -> None:
    model = Model(locate("demo")[0])
    divergences = []
    for token_ids in stories:
        exact, coded = (_logprobs(model, token_ids, kind) for kind in (None, kv_dtype))
        divergences.append((np.exp(exact) * (exact - coded)).sum(1))

    divergence = float(np.concatenate(divergences).mean())

    record_property("nats_per_token", divergence)
    assert 0 < divergence < MOST[kv_dtype]
