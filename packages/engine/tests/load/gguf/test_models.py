"""Whole models from GGUF files give the very logits of the folders that they were made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import FAMILIES
from gguf_written import write_as_gguf
from oracle import Oracle, deviation, prompt
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.load.gguf.families import FAMILIES as READ
from stepping import Model
from twins import TWINS, TwinOracle

_EXPERTS = {"expert_count": 6, "expert_used_count": 3}
_INNER = {"expert_feed_forward_length": 40}
_GRANITE = {"attention.scale": 0.25, "embedding_scale": 12.0, "residual_scale": 0.8,
            "logit_scale": 4.0}  # fmt: skip
_WINDOW = {"attention.sliding_window": 7}
_PATTERNS = {"sliding_window_pattern": 4, "layer_types": None, "num_hidden_layers": 5}
_LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
_PLAIN: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e6}

_LATENT = {  # of DeepSeek, in the form of newer files
    **_EXPERTS, **_INNER, "expert_count": 8, "leading_dense_block_count": 1,
    "expert_shared_count": 2, "attention.kv_lora_rank": 24, "attention.head_count_kv": 1,
    "attention.key_length": 32, "attention.value_length": 24, "attention.key_length_mla": 24,
    "attention.value_length_mla": 20, "rope.dimension_count": 8}  # fmt: skip
_YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
         "rope.scaling.original_context_length": 64,
         "rope.scaling.yarn_log_multiplier": 0.07}  # fmt: skip
_DEEPSEEK_V3 = {
    **_LATENT, **_YARN, "attention.q_lora_rank": 32, "expert_gating_func": 2,
    "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_group_count": 4,
    "expert_group_used_count": 2}  # fmt: skip
_WHOLE_HEADS = {  # of older files: kv_b_proj as it was published
    "attention.key_length_mla": None, "attention.value_length_mla": None,
    "attention.head_count_kv": 4, "attention.key_length": 24,
    "attention.value_length": 20}  # fmt: skip
_GPT_OSS = {
    **_EXPERTS, "expert_feed_forward_length": 96, **_WINDOW, "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 32,
    "rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0}  # fmt: skip

ROUNDED = {"gpt-oss", "minicpm"}
"""In the folder of the one experts have columns in place of rows, so sums have another order; the
other's scale is stored divided by the root of the number of layers.
"""

# architecture in GGUF: family, what of its config differs, metadata beyond the common ones
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama tied", {}, {}),
    "llama with experts": ("mixtral", {}, {"expert_count": 6, "expert_used_count": 2}),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {}, {}),
    "qwen2moe": ("qwen2_moe", {"mlp_only_layers": []}, {
        **_EXPERTS, **_INNER, "expert_used_count": 2, "expert_shared_feed_forward_length": 56}),
    "qwen3moe": ("qwen3_moe", {}, {**_EXPERTS, **_INNER}),
    "gemma3": ("gemma3", {"query_pre_attn_scalar": 24, "sliding_window_pattern": 6,
        "num_hidden_layers": 7}, {**_WINDOW, **_LINEAR}),
    "olmo2": ("olmo2", {}, {}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 4, "num_hidden_layers": 5}, {}),
    "exaone4": ("exaone4", _PATTERNS, _WINDOW),
    "seed_oss": ("seed_oss", {}, {}),
    "hunyuan-dense": ("hunyuan_v1_dense", {}, {}),
    "ernie4_5": ("ernie4_5", {"use_bias": False}, {}),
    "ernie4_5-moe": ("ernie4_5_moe", {}, {
        **_EXPERTS, **_INNER, "leading_dense_block_count": 1, "interleave_moe_layer_step": 1}),
    "granite": ("granite", {}, _GRANITE),
    "granitemoe": ("granitemoe", {}, {**_GRANITE, "expert_count": 6, "expert_used_count": 2}),
    "glm4": ("glm4", {}, {"rope.dimension_count": 12}),
    "glm4moe": ("glm4_moe", {}, {
        **_INNER, "expert_count": 8, "expert_used_count": 3, "leading_dense_block_count": 1,
        "expert_weights_norm": True, "expert_weights_scale": 2.5, "rope.dimension_count": 12}),
    "granitemoe shared": ("granitemoeshared", {}, {
        **_GRANITE, "expert_count": 6, "expert_used_count": 2,
        "expert_shared_feed_forward_length": 56}),
    "olmo2 OLMo 3": ("olmo3", {}, {
        **_WINDOW, "attention.sliding_window_pattern": [True, True, True, False],
        "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.attn_factor": 1.2,
        "rope.scaling.original_context_length": 32}),
    "mistral3": ("ministral3", {}, {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0,
        "rope.scaling.original_context_length": 16, "rope.scaling.yarn_beta_fast": 32.0,
        "rope.scaling.yarn_beta_slow": 1.0, "rope.scaling.yarn_log_multiplier": 1.0,
        "attention.temperature_scale": 0.5}),
    "minicpm": ("MiniCPM", {}, {
        "embedding_scale": 12.0, "residual_scale": 0.8, "logit_scale": 4.0}),
    "orion": ("Orion", {}, {}),
    "stablelm": ("stablelm", {}, {"rope.dimension_count": 4}),
    "stablelm parallel": ("stablelm parallel", {}, {
        "rope.dimension_count": 4, "use_parallel_residual": True}),
    "phi2": ("phi", {}, {"rope.dimension_count": 8}),
    "deepseek2": ("deepseek_v3", {}, _DEEPSEEK_V3),
    "deepseek2 whole heads": ("deepseek_v3", {}, {**_DEEPSEEK_V3, **_WHOLE_HEADS}),
    "deepseek2 V2": ("deepseek_v2", {}, {
        **_LATENT, **_YARN, "attention.q_lora_rank": 32, "expert_weights_scale": 16.0,
        "expert_group_count": 4, "expert_group_used_count": 2}),
    "deepseek2 V2-Lite": ("deepseek_v2 lite", {}, {**_LATENT, "expert_gating_func": 1}),
    "gpt-oss": ("gpt_oss", {}, _GPT_OSS),
    "minimax-m2": ("minimax_m2", {}, {
        **_EXPERTS, "expert_feed_forward_length": 96, "rope.dimension_count": 12}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_gguf_file_gives_the_logits_of_the_folder_it_was_made_from(
    case: str, tmp_path: Path
) -> None:
    name, differs, metadata = CASES[case]
    family = TWINS[name].family if name in TWINS else FAMILIES[name]
    arguments = {**family.arguments, **differs}
    arguments = {key: value for key, value in arguments.items() if differs.get(key, "") is not None}
    family = replace(family, arguments=arguments)
    if name in TWINS:
        TwinOracle(replace(TWINS[name], family=family), seed=3).save(tmp_path)
    else:
        Oracle(family, seed=3).save(tmp_path)
    told = {key: value for key, value in metadata.items() if value is not None}
    file = write_as_gguf(tmp_path, case.split()[0], told)

    actual, expected = (_logits(path) for path in (file, tmp_path))

    if case in ROUNDED:
        assert deviation(actual, expected) < 1e-5
    else:
        np.testing.assert_array_equal(actual, expected)


def test_experts_of_gpt_oss_in_mxfp4_stay_codes_and_give_the_logits_of_their_numbers(
    tmp_path: Path,
) -> None:
    Oracle(FAMILIES["gpt_oss"], seed=3).save(tmp_path)
    expanded = write_as_gguf(tmp_path, "gpt-oss", _GPT_OSS, "MXFP4", expanded=True)
    expected = _logits(expanded)
    with open_checkpoint(expanded) as checkpoint:
        numbers = checkpoint.reader.read("model.layers.1.mlp.experts.gate_up_proj").copy()
    file = write_as_gguf(tmp_path, "gpt-oss", _GPT_OSS, "MXFP4")

    with open_checkpoint(file) as checkpoint:
        stored = checkpoint.reader.quantized("model.layers.1.mlp.experts.gate_up_proj")

    assert stored is not None
    assert str(stored.format) == "MXFP4"
    np.testing.assert_array_equal(stored.read(), numbers)
    np.testing.assert_array_equal(_logits(file), expected)


def _logits(path: Path) -> Any:
    runner = Model(path).on("torch")
    runner.prefill(1, prompt(24), chunk=16)
    return runner.logits(1)


def test_every_architecture_that_is_read_was_compared_here_or_is_one_of_these() -> None:
    compared = {case.split()[0] for case in CASES}

    assert set(READ) - compared == {
        "internlm2",  # whose files are those of a Llama
        *("gemma", "gemma2", "phi3"),  # tests/load/gguf/test_model.py
    }
