"""Sparse attention in whole models: a token reads 6 of the 40 keys in front of it, or 64 of 300.

The selection hangs on rounding where two scores are all but equal, so that models of one seed are
compared in float32, in which none of theirs are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answers import check, greedily
from cases import Case
from noise import rms, typical
from oracle import deviation, prompt
from published import METHODS
from safetensors.numpy import load_file, save_file
from spaninfer_engine import Engine, SamplingParams
from spaninfer_engine.config import BackendName
from stepping import SPAN_LEN, Model

Load = Callable[[str], Case]

SPARSE = "deepseek_v32"
BACKENDS = ["cpu", "torch"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_of_an_indexer_are_shared_with_a_prefix(backend: BackendName, load: Load) -> None:
    case = load(SPARSE)
    shared = prompt(22)
    first, second = ([*shared, *prompt(18, seed=seed)] for seed in (2, 3))

    with case.engine(backend=backend, step_tokens=64) as engine:
        answers = [engine.generate(token_ids, greedily(8)) for token_ids in (first, second, second)]

    found = [answer.usage.cached_len for answer in answers]
    assert found == [0, *(n // SPAN_LEN * SPAN_LEN for n in (len(shared), len(second) - 1))]
    for answer in answers:
        check(answer, case)


def test_they_come_back_from_host_memory_and_disk(load: Load, tmp_path: Path) -> None:
    case = load(SPARSE)
    first, *others = (prompt(case.prompt_len, seed=seed) for seed in range(4))
    tiers = {"kv_offload": "8MiB", "kv_disk": tmp_path / "spans", "requests": 1.5}

    with case.engine(**tiers) as engine:
        for token_ids in (first, *others):
            engine.generate(token_ids, greedily(2))
        from_host = engine.generate(first, greedily(8))
    with case.engine(**tiers) as engine:
        from_disk = engine.generate(first, greedily(8))

    assert from_host.usage.cached_len == from_disk.usage.cached_len > 0
    check(from_host, case)
    check(from_disk, case)


def test_requests_that_give_their_spans_up_give_tokens_of_the_oracle(load: Load) -> None:
    case = load(SPARSE)
    prompts = [prompt(6, seed=seed) for seed in range(6)]

    with case.engine(requests=1.2) as engine:
        answers = engine.generate(prompts, greedily(20))
        preemptions = engine.stats().preemptions

    assert preemptions > 0
    for answer in answers:
        check(answer, case)


def test_choices_share_their_prompt_and_a_cancelled_request_frees_its_spans(load: Load) -> None:
    case = load(SPARSE)
    token_ids = prompt(21)

    with case.engine() as engine:
        given_up = engine.start_request(prompt(30, seed=9), greedily(20))
        engine.release(given_up[0])
        sampling = SamplingParams(n=3, max_tokens=6, temperature=0.0, ignore_eos=True)
        choices = engine.generate([token_ids], sampling)
        stats = engine.stats()

    wanted = case.golden(token_ids, 6).tokens
    assert [list(choice.token_ids) for choice in choices] == [wanted] * 3
    assert stats.running == 0


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_where_every_key_is_selected_attention_is_dense_to_the_bit(
    backend: str, load: Load, tmp_path: Path
) -> None:
    """The same weights as a DeepSeek-V3, which has no indexer."""
    case = load(SPARSE)
    token_ids = prompt(40)
    logits = []
    for index, words in enumerate(
        (
            {"index_topk": 40},
            {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"},
        )
    ):
        folder = tmp_path / str(index)
        folder.mkdir()
        config = json.loads((case.folder / "config.json").read_text())
        if index:
            config = {key: value for key, value in config.items() if "index" not in key}
            config.pop("layer_types")
            config.pop("mlp_layer_types")
        (folder / "config.json").write_text(json.dumps({**config, **words}))
        (folder / "model.safetensors").symlink_to(case.folder / "model.safetensors")
        runner = Model(folder, None).on(backend, case.num_spans)
        runner.prefill(1, token_ids, chunk=17)
        logits.append(runner.logits(1))

    assert np.array_equal(*logits)
    assert deviation(logits[0], case.golden().logits) > 0.01


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_keys_of_an_indexer_in_fewer_bits_select_nearly_the_same(kv_dtype: str, load: Load) -> None:
    """The typical row is compared: where a token is routed elsewhere, that says nothing of keys."""
    case = load("wide deepseek_v32")
    golden = case.golden()

    runner = case.model.on("cpu", case.num_spans, kv_dtype=kv_dtype)
    runner.prefill(1, golden.prompt, chunk=100)

    error = typical(runner.logits(1) - golden.logits) / rms(golden.logits)
    assert 0 < error < {"bfloat16": 0.03, "int8": 0.1}[kv_dtype]


IN_FP8 = ("wq_b.weight", "wk.weight", "q_a_proj.weight", "q_b_proj.weight", "kv_b_proj.weight")


EVERY_LINEAR = (*IN_FP8, "_with_mqa.weight", "o_proj.weight", "gate_proj.weight", "up_proj.weight",
                "down_proj.weight")  # fmt: skip


def _in_fp8(case: Case, ends: tuple[str, ...], folder: Path) -> tuple[Model, Model]:
    """Return the model with matrices in blocks of FP8, and one of the numbers they stand for.

    As published: weights of heads and the norm of keys beside them are plain numbers.
    """
    fp8, config = METHODS["FP8 blocks"], json.loads((case.folder / "config.json").read_text())
    plain = load_file(case.folder / "model.safetensors")
    coded = dict(plain)
    for seed, name in enumerate(sorted(plain)):
        if not name.endswith(ends):
            continue
        made = fp8.write(*plain[name].shape, np.random.default_rng(seed))
        plain[name] = made.numbers.astype(np.float32)
        del coded[name]
        coded |= {f"{name[: -len('weight')]}{key}": each for key, each in made.tensors.items()}
    assert len(coded) > len(plain)
    said = {"coded": {"quantization_config": dict(fp8.settings)}, "plain": {}}
    models = []
    for name, tensors in (("coded", coded), ("plain", plain)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({**config, **said[name]}))
        save_file(tensors, folder / name / "model.safetensors")
        models.append(Model(folder / name))
    return models[0], models[1]


def test_an_indexer_in_blocks_of_fp8_computes_with_the_numbers_that_they_stand_for(
    load: Load, tmp_path: Path
) -> None:
    logits = []
    for model in _in_fp8(load(SPARSE), IN_FP8, tmp_path):
        runner = model.on("reference")
        runner.prefill(1, prompt(20), chunk=9)
        logits.append(runner.logits(1))

    assert np.array_equal(*logits)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["wide deepseek_v32", "wide glm_moe_dsa"])
def test_backend_cuda_is_as_near_with_blocks_of_fp8_as_with_their_numbers(
    name: str, dtype: str, load: Load, tmp_path: Path
) -> None:
    """Typical rows: a few choose other experts, or other keys, for a rounding."""
    case = load(name)
    quantised, expanded = _in_fp8(case, EVERY_LINEAR, tmp_path)

    def logits(model: Model, backend: str, chunk: int) -> Any:
        runner = model.on(backend, case.num_spans, 16)
        runner.prefill(1, prompt(case.prompt_len), chunk=chunk)
        return runner.logits(1)

    exact = logits(expanded, "reference", 300)
    coding = typical(logits(expanded, "reference activations 128 fp8", 300) - exact)
    for chunk in (1, 9, 300):
        error, rounding = (
            typical(logits(model, f"cuda {dtype}", chunk) - exact)
            for model in (quantised, expanded)
        )
        assert error < 1.5 * np.hypot(coding, rounding)


def test_four_bits_are_refused_by_name(load: Load) -> None:
    with pytest.raises(Exception, match=r"kv_dtype uint4 is too coarse for .* sparse attention"):
        load(SPARSE).engine(kv_dtype="uint4")


def test_the_memory_of_an_indexers_keys_is_counted(load: Load) -> None:
    case = load(SPARSE)
    latents, index = case.model.decoder.groups

    assert (latents.key_size, index.key_size, index.is_index, latents.is_index) == (
        *(32, 16, True),
        False,
    )
    with case.engine(requests=3) as engine:
        assert isinstance(engine, Engine)
        assert len(set(engine.resolved.num_spans)) == 1
