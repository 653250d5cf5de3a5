"""Golden lists of the weights of a few architectures: names, shapes and tensor-parallel splits.

`python test_snapshots.py` writes the listings anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spaninfer_engine.spec import Decoder, find, resolve, weights

FOLDER = Path(__file__).with_name("snapshots")

_SIZES = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2": {
        **_SIZES, "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 1,
        "tie_word_embeddings": True,
    },
    "phi3": {**_SIZES, "architectures": ["Phi3ForCausalLM"], "num_hidden_layers": 1},
    "gemma3": {
        **_SIZES, "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 1, "head_dim": 32,
        "sliding_window": 8, "hidden_act": "gelu_pytorch_tanh", "query_pre_attn_scalar": 32,
    },
    "falcon": {
        "architectures": ["FalconForCausalLM"], "vocab_size": 100, "hidden_size": 64,
        "num_attention_heads": 4, "num_kv_heads": 2, "num_hidden_layers": 1,
        "new_decoder_architecture": True, "bias": False, "layer_norm_epsilon": 1e-5,
    },
    "deepseek_v3": {
        **_SIZES, "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 2,
        "q_lora_rank": 48, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 20, "first_k_dense_replace": 1, "n_routed_experts": 4, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "moe_intermediate_size": 40, "n_group": 2, "topk_group": 1,
    },
}  # fmt: skip


def listing(decoder: Decoder) -> str:
    """One line per weight: name, shape, and how tensor parallelism cuts it."""
    lines = []
    for weight in weights(decoder):
        cut = "" if weight.split is None else f" axis {weight.split}"
        parts = f" parts {list(weight.parts)}" if weight.parts else ""
        lines.append(f"{weight.name} {list(weight.shape)}{cut}{parts}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", CONFIGS)
def test_the_weights_are_those_of_the_snapshot(name: str) -> None:
    decoder = resolve(find(CONFIGS[name]), CONFIGS[name])

    assert listing(decoder) == (FOLDER / f"{name}.txt").read_text()


if __name__ == "__main__":
    for each, config in CONFIGS.items():
        (FOLDER / f"{each}.txt").write_text(listing(resolve(find(config), config)))
