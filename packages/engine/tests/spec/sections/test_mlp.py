from __future__ import annotations

from typing import Any

import pytest
from spaninfer_engine.errors import SpecError
from spaninfer_engine.spec import find, resolve, weights
from spaninfer_engine.spec.mlp_nodes import (
    EachExpert,
    FusedGatedMLP,
    GatedMLP,
    PlainMLP,
    RoutedMLP,
    Routing,
    StackedExperts,
)
from spaninfer_engine.spec.weight_nodes import Weight

CONFIG: dict[str, Any] = {
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}
QWEN: dict[str, Any] = {
    **CONFIG, "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 40, "norm_topk_prob": True,
}  # fmt: skip


def mlps(config: dict[str, Any], names: set[str] | None = None) -> list[Any]:
    return [layer.mlp for layer in resolve(find(config), config, names).layers]


def test_a_gated_mlp_is_cut_by_its_inner_channels() -> None:
    mlp = mlps({**CONFIG, "architectures": ["LlamaForCausalLM"], "mlp_bias": True})[1]

    assert isinstance(mlp, GatedMLP)
    assert mlp.gate.weight == Weight("model.layers.1.mlp.gate_proj.weight", (96, 64), 0)
    assert mlp.gate.bias == Weight("model.layers.1.mlp.gate_proj.bias", (96,), 0)
    assert mlp.down.weight == Weight("model.layers.1.mlp.down_proj.weight", (64, 96), 1)
    assert mlp.down.bias == Weight("model.layers.1.mlp.down_proj.bias", (64,))


def test_a_fused_gate_is_cut_part_by_part() -> None:
    mlp = mlps({**CONFIG, "architectures": ["GlmForCausalLM"]})[0]

    assert isinstance(mlp, FusedGatedMLP)
    assert mlp.gate_up.weight == Weight(
        "model.layers.0.mlp.gate_up_proj.weight", (192, 64), 0, (96, 96)
    )


def test_a_plain_mlp_has_no_gate() -> None:
    config = {**CONFIG, "architectures": ["PhiForCausalLM"], "hidden_act": "gelu_new",
              "layer_norm_eps": 1e-5}  # fmt: skip
    del config["rms_norm_eps"]

    mlp = mlps(config)[0]

    assert isinstance(mlp, PlainMLP)
    assert mlp.act == "gelu_tanh"
    assert [weight.name.rsplit(".", 2)[1] for weight in weights(mlp)] == [
        "fc1",
        "fc1",
        "fc2",
        "fc2",
    ]


def test_experts_are_tensors_of_their_own_unless_the_checkpoint_stacks_them() -> None:
    prefix = "model.layers.0.mlp.experts."

    each, stacked = mlps(QWEN)[0], mlps(QWEN, {f"{prefix}gate_up_proj"})[0]

    assert isinstance(each.experts, EachExpert)
    assert each.experts.up[3] == Weight(f"{prefix}3.up_proj.weight", (40, 64), 0)
    assert each.experts.down[3] == Weight(f"{prefix}3.down_proj.weight", (64, 40), 1)
    assert stacked.experts == StackedExperts(
        Weight(f"{prefix}gate_up_proj", (4, 80, 64), 1, (40, 40)),
        Weight(f"{prefix}down_proj", (4, 64, 40), 2),
        "oi",
    )


def test_some_layers_may_stay_dense() -> None:
    kinds = [type(mlp) for mlp in mlps({**QWEN, "mlp_only_layers": [1]})]
    every_other = [type(mlp) for mlp in mlps({**QWEN, "decoder_sparse_step": 2})]

    assert kinds == [RoutedMLP, GatedMLP, RoutedMLP]
    assert every_other == [GatedMLP, RoutedMLP, GatedMLP]


def test_deepseek_v3_scores_by_groups_with_a_correction_and_shared_experts() -> None:
    config = {
        **CONFIG, "architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 24,
        "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20,
        "first_k_dense_replace": 1, "n_routed_experts": 8, "n_shared_experts": 2,
        "num_experts_per_tok": 3, "moe_intermediate_size": 40, "n_group": 4, "topk_group": 2,
        "routed_scaling_factor": 2.5, "norm_topk_prob": True, "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
    }  # fmt: skip

    dense, routed, _ = mlps(config)

    assert isinstance(dense, GatedMLP)
    assert routed.routing == Routing(
        "sigmoid", top_k=3, normalise=True, scale=2.5, groups=4, group_topk=2, group_score="top2"
    )
    assert routed.correction == Weight("model.layers.1.mlp.gate.e_score_correction_bias", (8,))
    assert routed.shared.gate.weight == Weight(
        "model.layers.1.mlp.shared_experts.gate_proj.weight", (80, 64), 0
    )
    assert routed.shared_gate is None


def test_the_shared_expert_of_qwen2_moe_has_a_gate_of_one_channel() -> None:
    config = {**QWEN, "architectures": ["Qwen2MoeForCausalLM"], "num_key_value_heads": 4,
              "shared_expert_intermediate_size": 56}  # fmt: skip

    mlp = mlps(config)[0]

    assert mlp.shared.down.weight.shape == (64, 56)
    assert mlp.shared_gate.weight == Weight("model.layers.0.mlp.shared_expert_gate.weight", (1, 64))


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"num_experts_per_tok": 5}, "5 of 4 experts cannot be chosen"),
        ({"num_experts_per_tok": 0}, "expected an integer from 1"),
        ({"hidden_act": "softplus"}, "expected one of silu, gelu"),
        ({"num_experts": None}, "config.json has no num_experts and no num_local_experts"),
    ],
)
def test_sizes_that_make_no_router_are_refused(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        mlps({**QWEN, **more})


DEEPSEEK: dict[str, Any] = {
    **CONFIG, "architectures": ["DeepseekV3ForCausalLM"], "n_routed_experts": 8, "n_group": 4,
    "topk_group": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
    "q_lora_rank": 32, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 20,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"num_experts_per_tok": 5}, "5 of 4 experts in 2 of 4 groups cannot be chosen"),
        ({"num_experts_per_tok": 4, "topk_group": 1}, "4 of 2 experts in 1 of 4 groups cannot be"),
        (
            {"n_group": 8, "topk_group": 3},
            "groups of 1 expert have no two best, whose sum is wanted; config.json says n_group",
        ),
    ],
)
def test_routing_that_no_definition_covers_is_refused(
    changed: dict[str, Any], problem: str
) -> None:
    mlps(DEEPSEEK)

    with pytest.raises(SpecError) as refused:
        mlps({**DEEPSEEK, **changed})

    assert problem in str(refused.value)


def test_so_many_experts_that_their_names_alone_fill_memory_are_refused() -> None:
    with pytest.raises(SpecError, match="10,000 experts in 1,000 layers; at most 200,000"):
        mlps({**QWEN, "num_experts": 10_000, "num_hidden_layers": 1_000})
