from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from families import FAMILIES
from spaninfer_engine.errors import CheckpointError, NotBuilt, SpecError
from spaninfer_engine.spec import check, find, load, parameter_count, resolve, weights
from spaninfer_engine.spec.nodes import Learned
from spaninfer_engine.spec.registry import library
from spaninfer_engine.spec.weight_nodes import Linear, Weight

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}
OPT: dict[str, Any] = {
    "architectures": ["OPTForCausalLM"], "activation_function": "relu", "hidden_size": 64,
    "ffn_dim": 96, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 100,
    "max_position_embeddings": 32, "do_layer_norm_before": False, "word_embed_proj_dim": 48,
}  # fmt: skip


def test_equal_configs_give_equal_trees() -> None:
    assert resolve(load("llama"), CONFIG) == resolve(load("llama"), dict(CONFIG))


def test_a_tied_head_is_the_table_of_the_embedding() -> None:
    decoder = resolve(load("llama"), {**CONFIG, "tie_word_embeddings": True})

    assert decoder.head.tied
    assert decoder.head.linear == Linear(decoder.embedding.table)
    assert "lm_head.weight" not in {weight.name for weight in weights(decoder)}


def test_a_head_that_is_stored_wins_over_a_tied_one() -> None:
    config = {**CONFIG, "tie_word_embeddings": True}

    decoder = resolve(load("llama"), config, {"lm_head.weight"})

    assert not decoder.head.tied
    assert decoder.head.linear == Linear(Weight("lm_head.weight", (100, 64), 0))


def test_an_untied_head_that_is_not_stored_is_missing_not_tied() -> None:
    shapes = {w.name: w.shape for w in weights(resolve(load("llama"), CONFIG))}
    del shapes["lm_head.weight"]

    decoder = resolve(load("llama"), CONFIG, shapes)

    with pytest.raises(CheckpointError, match=r"lm_head.weight \[100, 64\] is missing"):
        check(decoder, shapes)


def test_some_families_are_tied_unless_they_say_otherwise() -> None:
    tied = {**CONFIG, "hidden_act": "gelu", "head_dim": 16, "num_key_value_heads": 1}

    assert resolve(load("gemma"), tied).head.tied
    assert not resolve(load("gemma"), {**tied, "tie_word_embeddings": False}).head.tied


def test_opt_350m_projects_its_embedding_and_norms_behind_the_sums() -> None:
    decoder = resolve(load("opt"), OPT)

    layer, prefix = decoder.layers[0], "model.decoder."
    assert decoder.embedding.table == Weight(f"{prefix}embed_tokens.weight", (100, 48), 0)
    assert decoder.embedding.project == Linear(Weight(f"{prefix}project_in.weight", (64, 48)))
    assert decoder.embedding.positions == Learned(
        Weight(f"{prefix}embed_positions.weight", (34, 64)), 2
    )
    assert decoder.head.project == Linear(Weight(f"{prefix}project_out.weight", (48, 64)))
    assert decoder.norm is None
    assert layer.norms.attention_pre is None
    assert layer.norms.attention_after is not None
    assert layer.norms.mlp_after is not None
    assert layer.norms.mlp_after.weight.name == f"{prefix}layers.0.final_layer_norm.weight"


def test_phi_is_parallel_with_one_norm_and_a_bias_on_its_head() -> None:
    config = {**CONFIG, "architectures": ["PhiForCausalLM"], "layer_norm_eps": 1e-5}
    del config["rms_norm_eps"]

    decoder = resolve(load("phi"), config)

    assert decoder.layers[0].parallel
    assert decoder.layers[0].norms.attention_pre is not None
    assert decoder.layers[0].norms.mlp_pre is None
    assert decoder.head.linear.bias == Weight("lm_head.bias", (100,), 0)


def test_layers_that_predict_further_tokens_are_stored_and_not_used() -> None:
    decoder = resolve(load("llama"), {**CONFIG, "num_nextn_predict_layers": 1})

    shapes = {weight.name: weight.shape for weight in weights(decoder)}
    check(decoder, {**shapes, "model.layers.2.eh_proj.weight": (64, 128)})
    with pytest.raises(CheckpointError, match=r"model.layers.3.x"):
        check(decoder, {**shapes, "model.layers.3.x": (1,)})


@pytest.mark.parametrize("name", [name for name in library() if load(name).kind == "encdec"])
def test_other_kinds_are_refused_with_a_reason(name: str) -> None:
    with pytest.raises(NotBuilt, match=f"^{name} is of kind .*served are decoders and encoders"):
        resolve(load(name), {})


@pytest.mark.parametrize("nested", [True, False])
def test_the_text_half_of_a_media_model_is_described_in_both_spellings(nested: bool) -> None:
    text = {**FAMILIES["qwen2"].arguments, "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}  # fmt: skip
    config = {"text_config": text} if nested else text
    only_text = replace(load("qwen2_vl"), kind="decoder")

    decoder = resolve(only_text, config)

    same_sizes = {key: value for key, value in text.items() if key != "rope_scaling"}
    assert parameter_count(decoder) == parameter_count(resolve(load("qwen2"), same_sizes))
    assert decoder.layers[0].attention.positions.sections == (2, 3, 3)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_hidden_layers", 10**9), ("num_hidden_layers", 0), ("hidden_size", -64),
     ("vocab_size", 2**60), ("num_attention_heads", 0)],
)  # fmt: skip
def test_sizes_that_no_model_has_are_refused(key: str, value: int) -> None:
    with pytest.raises(SpecError, match="expected an integer from 1"):
        resolve(load("llama"), {**CONFIG, key: value})


def test_an_architecture_is_found_by_the_first_name_of_the_config() -> None:
    assert find({"architectures": ["Qwen3ForCausalLM", "LlamaForCausalLM"]}) == load("qwen3")


def test_internlm3_puts_biases_on_queries_keys_and_values_alone() -> None:
    decoder = resolve(load("internlm3"), {**CONFIG, "qkv_bias": True, "bias": False})

    biases = {weight.name for weight in weights(decoder.layers[0]) if weight.name.endswith("bias")}
    assert biases == {f"model.layers.0.self_attn.{each}_proj.bias" for each in "qkv"}
