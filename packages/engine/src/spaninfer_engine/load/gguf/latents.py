"""DeepSeek-V2, V3, R1 and Kimi-K2 in GGUF files, which llama.cpp calls deepseek2.

Newer files hold the product that makes keys and values of a latent in two stacks of a matrix per
head, `attn_k_b`[H R N], turned around, and `attn_v_b`[H E R]; older ones as published, `attn_kv_b`
[H*(N+E) R]. Their sizes of a head are those of the latent in the first case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from spaninfer_engine.errors import CheckpointError, ConfigError
from spaninfer_engine.load.gguf.experts import counts, inner_channels
from spaninfer_engine.load.gguf.metadata import Metadata, shortest
from spaninfer_engine.load.gguf.rope import linear_or_yarn
from spaninfer_engine.load.tensors.made import MadeArray
from spaninfer_engine.load.tensors.reader import Entry

LATENTS = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
}
_SOFTMAX, _SIGMOID = 1, 2  # of expert_gating_func
_GROUPS = {256: (8, 4), 160: (8, 3)}
"""Groups of experts and how many are chosen, by the number of experts: DeepSeek-V3 and V2. Older
files do not say; the other published models have one group.
"""


def deepseek2(metadata: Metadata, _: Mapping[str, Entry]) -> dict[str, Any]:
    """DeepSeek-V2 where the router's scores are softmax's, DeepSeek-V3 where they are sigmoids."""
    gating = metadata.optional("expert_gating_func") or _SOFTMAX
    if gating not in (_SOFTMAX, _SIGMOID):
        raise ConfigError(
            f"{metadata.source}: expert_gating_func is {gating}; supported are {_SOFTMAX} "
            f"(softmax) and {_SIGMOID} (sigmoid)"
        )
    if metadata.optional("attention.temperature_scale"):
        raise ConfigError(
            f"{metadata.source}: attention.temperature_scale says that it is not a "
            "DeepSeek or Kimi model; use the Hugging Face folder"
        )
    config = _sizes(metadata) | _experts(metadata) | _rope(metadata)
    if gating == _SIGMOID:
        return config | {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "norm_topk_prob": bool(metadata.optional("expert_weights_norm")),
        }
    method = "greedy" if config["n_group"] == 1 else "group_limited_greedy"
    return config | {"scoring_func": "softmax", "topk_method": method, "norm_topk_prob": False}


def _sizes(metadata: Metadata) -> dict[str, Any]:
    of_latent = "_mla" if metadata.optional("attention.key_length_mla") else ""
    key = metadata.count(f"attention.key_length{of_latent}")
    rotated = metadata.count("rope.dimension_count")
    if key <= rotated:
        raise CheckpointError(
            f"{metadata.source}: attention.key_length{of_latent} is {key}; it must be more than "
            f"rope.dimension_count, {rotated}"
        )
    return {
        "num_key_value_heads": metadata.count("attention.head_count"),
        "head_dim": rotated,
        "q_lora_rank": metadata.amount("attention.q_lora_rank") or None,
        "kv_lora_rank": metadata.count("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": metadata.count(f"attention.value_length{of_latent}"),
    }


def _experts(metadata: Metadata) -> dict[str, Any]:
    experts, chosen = counts(metadata)
    groups, chosen_groups = _GROUPS.get(experts, (1, 1))
    return {
        "n_routed_experts": experts,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": inner_channels(metadata),
        "n_shared_experts": metadata.amount("expert_shared_count"),
        "first_k_dense_replace": metadata.amount("leading_dense_block_count"),
        "routed_scaling_factor": shortest(metadata.number("expert_weights_scale", 1.0)),
        "n_group": metadata.count("expert_group_count", groups),
        "topk_group": metadata.count("expert_group_used_count", chosen_groups),
    }


def _rope(metadata: Metadata) -> dict[str, Any]:
    """The stretch of positions; the file holds a tenth of mscale_all_dim, which mscale equals."""
    scaling = linear_or_yarn(metadata)
    if scaling is None:
        return {}
    if metadata.optional("rope.scaling.yarn_log_multiplier") is not None:
        mscale = shortest(10 * metadata.number("rope.scaling.yarn_log_multiplier"))
        scaling |= {"mscale": mscale, "mscale_all_dim": mscale}
    return {"rope_scaling": scaling}


def with_joined_heads(metadata: Metadata, entries: dict[str, Entry]) -> dict[str, Entry]:
    """Return the entries with one kv_b_proj of the two stacks of a layer that newer files have."""
    joined: dict[str, Entry] = {}
    for name, stored in entries.items():
        if found := re.fullmatch(r"(.*\.)k_b_proj\.weight", name):
            joined[f"{found[1]}kv_b_proj.weight"] = _joined(metadata, found[1], entries)
        elif not name.endswith(".v_b_proj.weight"):
            joined[name] = stored
    return joined


def _joined(metadata: Metadata, prefix: str, entries: Mapping[str, Entry]) -> MadeArray:
    names = (f"{prefix}k_b_proj.weight", f"{prefix}v_b_proj.weight")
    if names[1] not in entries:
        raise CheckpointError(f"{metadata.source}: {names[0]} is there, and {names[1]} is missing")
    keys, values = (entries[name] for name in names)
    shapes = keys.shape, values.shape
    if [len(shape) for shape in shapes] != [3, 3] or keys.shape[:2] != values.shape[::2]:
        raise CheckpointError(
            f"{metadata.source}: {names[0]} is {list(keys.shape)} and {names[1]} "
            f"{list(values.shape)}; expected are [heads, rank, channels] and "
            "[heads, channels, rank]"
        )
    heads, rank, channels = keys.shape
    rows = heads * (channels + values.shape[1])

    def make() -> np.ndarray:
        both = np.concatenate([keys.read().swapaxes(1, 2), values.read()], axis=1)
        return both.reshape(rows, rank)

    return MadeArray((rows, rank), np.dtype(np.float32), make)
