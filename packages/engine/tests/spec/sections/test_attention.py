from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spaninfer_engine.errors import SpecError
from spaninfer_engine.spec import Decoder, find, load, resolve
from spaninfer_engine.spec.attention_nodes import (
    Alibi,
    Attention,
    FusedQkv,
    LowRank,
    MlaAttention,
    Rope,
    SplitQkv,
)
from spaninfer_engine.spec.nodes import CacheGroup
from spaninfer_engine.spec.weight_nodes import Linear, Weight

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}
GEMMA: dict[str, Any] = {
    **CONFIG, "hidden_act": "gelu", "head_dim": 24, "sliding_window": 7,
    "query_pre_attn_scalar": 16,
}  # fmt: skip
MLA: dict[str, Any] = {
    **CONFIG, "architectures": ["DeepseekV2ForCausalLM"], "kv_lora_rank": 24, "q_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20, "first_k_dense_replace": 4,
}  # fmt: skip


def decoder(architecture: str, config: dict[str, Any] = CONFIG, **more: Any) -> Decoder:
    config = {**config, "architectures": [f"{architecture}ForCausalLM"], **more}
    return resolve(find(config), config)


def attention(architecture: str, config: dict[str, Any] = CONFIG, **more: Any) -> Attention:
    found = decoder(architecture, config, **more).layers[0].attention
    assert isinstance(found, Attention)
    return found


def test_split_projections_are_cut_by_rows_and_the_output_by_columns() -> None:
    found = attention("Llama", attention_bias=True)

    assert isinstance(found.qkv, SplitQkv)
    assert found.qkv.k.weight == Weight("model.layers.0.self_attn.k_proj.weight", (32, 64), 0)
    assert found.qkv.k.bias == Weight("model.layers.0.self_attn.k_proj.bias", (32,), 0)
    assert found.out.weight == Weight("model.layers.0.self_attn.o_proj.weight", (64, 64), 1)
    assert found.out.bias == Weight("model.layers.0.self_attn.o_proj.bias", (64,), None)


def test_concatenated_projections_are_cut_part_by_part() -> None:
    config = {key: value for key, value in CONFIG.items() if key != "num_key_value_heads"}

    found = attention("Phi3", config, num_key_value_heads=1)

    assert isinstance(found.qkv, FusedQkv)
    assert found.qkv.layout == "concat"
    name = "model.layers.0.self_attn.qkv_proj.weight"
    assert found.qkv.linear.weight == Weight(name, (96, 64), 0, (64, 16, 16))


def test_grouped_projections_are_cut_in_one_piece() -> None:
    found = attention("InternLM2")

    assert isinstance(found.qkv, FusedQkv)
    assert found.qkv.layout == "grouped"
    assert found.qkv.linear.weight == Weight("model.layers.0.attention.wqkv.weight", (128, 64), 0)


def test_layers_with_and_without_a_window_keep_spans_of_their_own() -> None:
    found = decoder("Gemma2", GEMMA)

    assert found.groups == (
        CacheGroup(0, layers=(0, 2), kv_heads=2, key_size=24, value_size=24, window=7),
        CacheGroup(1, layers=(1, 3), kv_heads=2, key_size=24, value_size=24),
    )
    assert [layer.attention.group for layer in found.layers] == [0, 1, 0, 1]


def test_groups_are_numbered_by_their_first_layer() -> None:
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]

    found = decoder("Gemma2", GEMMA, layer_types=kinds)

    assert [group.layers for group in found.groups] == [(0, 3), (1, 2)]
    assert [group.window for group in found.groups] == [None, 7]


def test_a_model_without_windows_is_one_group() -> None:
    assert decoder("Llama").groups == (CacheGroup(0, (0, 1, 2, 3), 2, 16, 16),)


def test_windows_of_qwen2_begin_at_a_layer_and_only_where_asked_for() -> None:
    with_windows = decoder("Qwen2", use_sliding_window=True, sliding_window=7, max_window_layers=3)
    without = decoder("Qwen2", use_sliding_window=False, sliding_window=7, max_window_layers=3)

    assert [group.layers for group in with_windows.groups] == [(0, 1, 2), (3,)]
    assert [group.window for group in without.groups] == [None]


def test_layers_of_gemma3_with_a_window_rotate_with_a_base_of_their_own() -> None:
    found = decoder(
        "Gemma3", GEMMA, sliding_window_pattern=2, rope_scaling={"rope_type": "linear", "factor": 8}
    )

    local, whole = (layer.attention for layer in found.layers[:2])
    assert isinstance(local, Attention)
    assert isinstance(whole, Attention)
    assert isinstance(local.positions, Rope)
    assert isinstance(whole.positions, Rope)
    assert (local.window, whole.window) == (7, None)
    assert (local.positions.frequencies.theta, whole.positions.frequencies.theta) == (1e4, 1e6)
    assert (local.positions.frequencies.kind, whole.positions.frequencies.kind) == (
        "default",
        "linear",
    )
    assert local.norms is not None
    assert local.norms.q.plus_one


def test_a_latent_attention_caches_one_head_whose_values_are_in_its_keys() -> None:
    found = decoder("DeepseekV2", MLA)

    assert found.groups == (
        CacheGroup(0, (0, 1, 2, 3), kv_heads=1, key_size=32, value_size=24, values_in_keys=True),
    )


def test_a_latent_attention_is_cut_by_heads() -> None:
    found = decoder("DeepseekV2", MLA).layers[0].attention

    assert isinstance(found, MlaAttention)
    assert isinstance(found.q, LowRank)
    prefix = "model.layers.0.self_attn."
    assert found.q.down.weight == Weight(f"{prefix}q_a_proj.weight", (32, 64))
    assert found.q.up.weight == Weight(f"{prefix}q_b_proj.weight", (96, 32), 0)
    assert found.kv_down.weight == Weight(f"{prefix}kv_a_proj_with_mqa.weight", (32, 64))
    assert found.kv_up.weight == Weight(f"{prefix}kv_b_proj.weight", (144, 24), 0)
    assert found.out.weight == Weight(f"{prefix}o_proj.weight", (64, 80), 1)
    assert (found.kv_norm.eps, found.q.norm.eps) == (1e-6, 1e-6)


def test_without_a_query_latent_the_query_is_one_projection() -> None:
    found = decoder("DeepseekV2", MLA, q_lora_rank=None).layers[0].attention

    assert isinstance(found, MlaAttention)
    assert found.q == Linear(Weight("model.layers.0.self_attn.q_proj.weight", (96, 64), 0))


def test_yarn_with_mscale_all_dim_stretches_the_scale_of_deepseek() -> None:
    yarn = {"type": "yarn", "factor": 40, "mscale_all_dim": 0.707, "mscale": 0.707,
            "original_max_position_embeddings": 4096}  # fmt: skip

    plain, stretched = (
        decoder("DeepseekV2", MLA, rope_scaling=table).layers[0].attention.scale
        for table in (None, yarn)
    )

    assert plain == pytest.approx(24**-0.5)
    # 0.1 * 0.707 * ln 40 + 1 = 1.26080
    assert stretched == pytest.approx(24**-0.5 * 1.2608038**2, rel=1e-6)


def test_falcon_scales_its_alibi_and_rounds_it_and_bloom_does_not() -> None:
    sizes = {key: CONFIG[key] for key in ("hidden_size", "num_attention_heads", "vocab_size")}
    config = {**sizes, "num_hidden_layers": 1, "layer_norm_epsilon": 1e-5}

    falcon, bloom = attention("Falcon", config, alibi=True), attention("Bloom", config)

    assert falcon.positions == Alibi(scaled=True, rounded=True)
    assert bloom.positions == Alibi(scaled=False, rounded=False)


def test_a_rounded_alibi_that_is_not_scaled_is_refused(tmp_path: Path) -> None:
    spec = tmp_path / "odd.toml"
    spec.write_text('inherits = "bloom"\n[attn]\nalibi_bf16 = true\n')
    sizes = {key: CONFIG[key] for key in ("hidden_size", "num_attention_heads", "vocab_size")}

    with pytest.raises(SpecError, match="alibi_scaled") as caught:
        resolve(load(spec), {**sizes, "num_hidden_layers": 1, "layer_norm_epsilon": 1e-5})

    assert caught.value.key == "alibi_bf16"


@pytest.mark.parametrize(
    ("more", "key", "problem"),
    [
        ({"num_key_value_heads": 3}, "kv_heads", "4 heads are no multiple of 3"),
        ({"num_key_value_heads": 0}, "kv_heads", "expected an integer from 1"),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": 0},
            "window",
            "expected an integer from 1",
        ),
    ],
)
def test_sizes_that_make_no_attention_are_refused(
    more: dict[str, Any], key: str, problem: str
) -> None:
    config = {**CONFIG, **more}

    with pytest.raises(SpecError, match=problem) as caught:
        resolve(find(config), config)

    assert caught.value.key == key
