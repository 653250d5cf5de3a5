"""Quantised KV caches: changes of logits and tokens, on stories of the bundled model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import Case
from noise import rms, typical
from numpy.typing import NDArray
from spaninfer_engine import Engine, SamplingParams
from spaninfer_engine.backends.reference.ops import ReferenceOps
from spaninfer_engine.startup.model import locate
from spaninfer_op_reference import E4M3_MOST, quantize_fp8, to_e4m3
from stepping import Model

MOST = {"float16": 1e-6, "bfloat16": 1e-5, "fp8": 1e-3, "int8": 1e-3, "uint4": 1e-2}
"""Nats per token."""

ON = [
    *(("cpu", kv_dtype) for kv_dtype in ("float16", "bfloat16", "int8", "uint4")),
    *(
        pytest.param("cuda bfloat16", kv_dtype, marks=pytest.mark.gpu)
        for kv_dtype in ("fp8", "int8", "uint4")
    ),
]
DECODED = 50  # tokens that are computed one by one


@pytest.fixture(scope="module")
def stories() -> tuple[tuple[int, ...], ...]:
    """Return tokens drawn as the model would have them: what it was trained on looks like this."""
    sampling = SamplingParams(temperature=1.0, max_tokens=240, seed=1)
    with Engine("demo", backend="cpu", device="cpu", memory=1 << 28) as engine:
        answers = engine.generate(["Once upon a time", "The old king", "A ship"], sampling)
    return tuple((*answer.prompt_ids, *answer.token_ids) for answer in answers)


def _logprobs(
    model: Model, token_ids: tuple[int, ...], backend: str, kv_dtype: str | None
) -> NDArray[np.float64]:
    """Return the log-probabilities [T V] of a prompt in chunks, then token by token."""
    runner = model.on(backend, 60, 16, kv_dtype)
    runner.prefill_some(1, token_ids, len(token_ids) - DECODED, 64)
    for left in range(DECODED, 0, -1):
        runner.step((1, 1, left == 1))
    logits = runner.logits(1).astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


@pytest.mark.parametrize(("backend", "kv_dtype"), ON)
def test_the_distribution_of_the_next_token_changes_little(
    backend: str, kv_dtype: str, stories: tuple[tuple[int, ...], ...], record_property: Any
) -> None:
    model = Model(locate("demo")[0])
    divergences = []
    for token_ids in stories:
        exact, coded = (_logprobs(model, token_ids, backend, kind) for kind in (None, kv_dtype))
        divergences.append((np.exp(exact) * (exact - coded)).sum(1))

    divergence = float(np.concatenate(divergences).mean())

    record_property("nats_per_token", divergence)
    assert 0 < divergence < MOST[kv_dtype]


class Kept(ReferenceOps):
    """The definitions, with all keys[T K D] and values[T K D] of each layer kept aside."""

    def __init__(self) -> None:
        super().__init__("float64")
        self.kept: dict[tuple[str, int], list[NDArray[np.float64]]] = {}

    def append(self, step: Any, key: Any, value: Any = None, *, group: int, layer: int) -> None:
        """Write keys and values, and keep them."""
        self.kept.setdefault(("keys", layer), []).append(key.copy())
        self.kept.setdefault(("values", layer), []).append(value.copy())
        super().append(step, key, value, group=group, layer=layer)


def test_a_scale_per_token_and_head_is_nearer_than_a_checkpoint_s_one_per_layer(
    stories: tuple[tuple[int, ...], ...],
) -> None:
    """Also where that one was calibrated with the very keys and values that it is used for."""
    ops = Kept()
    model = Model(locate("demo")[0]).with_ops(ops, num_spans=300)
    for seq_id, token_ids in enumerate(stories):
        model.prefill(seq_id, token_ids, chunk=64)

    assert ops.kept
    for (what, layer), parts in ops.kept.items():
        x = np.concatenate(parts)
        codes, scales = quantize_fp8(x)
        fixed = np.abs(x).max() / E4M3_MOST

        ours, theirs = rms(codes * scales - x), rms(to_e4m3(x / fixed) * fixed - x)

        assert ours < theirs, (what, layer)


class InFp8(ReferenceOps):
    """The definitions, over latents that were in fp8: a scale per token."""

    def append(self, step: Any, key: Any, value: Any = None, *, group: int, layer: int) -> None:
        """Write what the codes of keys mean."""
        assert value is None
        codes, scales = quantize_fp8(key)
        super().append(step, codes * scales, group=group, layer=layer)


def _latent_logits(runner: Any, token_ids: list[int]) -> Any:
    """Return the logits of a prompt in chunks, then token by token."""
    runner.prefill_some(1, token_ids, len(token_ids) - 12, 96)
    for left in range(12, 0, -1):
        runner.step((1, 1, left == 1))
    return runner.logits(1)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["wide deepseek_v3", "wide deepseek_v2 lite", "wide kimi_k2"])
def test_backend_cuda_is_as_near_with_latents_in_fp8_as_their_definition(
    name: str, load: Callable[[str], Case]
) -> None:
    """Typical rows: a few choose other experts for a rounding."""
    case = load(name)
    golden = case.golden()
    meant = _latent_logits(case.model.with_ops(InFp8("float64"), case.num_spans), golden.prompt)

    coded, rounded = (
        _latent_logits(case.model.on("cuda bfloat16", case.num_spans, 16, kind), golden.prompt)
        for kind in ("fp8", None)
    )

    coding, rounding = typical(meant - golden.logits), typical(rounded - golden.logits)
    assert typical(coded - golden.logits) < 1.5 * np.hypot(coding, rounding)


@pytest.mark.parametrize(("kv_dtype", "times"), [("bfloat16", 2), ("int8", 3.5), ("uint4", 6)])
def test_an_engine_on_the_cpu_has_room_for_more_tokens_in_the_same_memory(
    kv_dtype: Any, times: float
) -> None:
    """Requests of different lengths side by side, most of one found in the prefix cache."""
    sampling = SamplingParams(temperature=0, max_tokens=24)
    asked: Any = {"backend": "cpu", "device": "cpu", "memory": 1 << 26}
    prompts = ["Once upon a time", "Once upon a time, there was an old king who lived in a tower"]
    with Engine("demo", **asked) as engine:
        plain = engine.resolved.num_spans[0]

    with Engine("demo", **asked, kv_dtype=kv_dtype) as engine:
        answers = engine.generate([*prompts, prompts[1] * 4], sampling)
        again = engine.generate(prompts[1] * 4, sampling)

        assert engine.resolved.num_spans[0] >= times * plain
    assert again.usage.cached_len > 0
    assert again.token_ids == answers[2].token_ids
