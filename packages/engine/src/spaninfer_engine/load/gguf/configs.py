"""The config.json of a GGUF file, from its metadata and tensors.

One function per architecture, for keys beyond those that all have (`families.Family.config`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spaninfer_engine.errors import CheckpointError, shown
from spaninfer_engine.load.gguf.experts import counts, inner_channels, num_shared
from spaninfer_engine.load.gguf.metadata import Metadata, shortest
from spaninfer_engine.load.gguf.rope import linear_or_yarn, llama3_scaling
from spaninfer_engine.load.tensors.reader import Entry

Config = dict[str, Any]
Tensors = Mapping[str, Entry]


def num_layers(metadata: Metadata) -> int:
    """Return the number of decoder layers; later ones predict further tokens."""
    return metadata.count("block_count") - metadata.amount("nextn_predict_layers")


def head_dim(metadata: Metadata) -> int:
    """Return the number of channels of a head."""
    hidden, heads = metadata.count("embedding_length"), metadata.count("attention.head_count")
    return metadata.count("attention.key_length", hidden // heads)


def llama(metadata: Metadata, tensors: Tensors) -> Config:
    """Llama, Mistral; Mixtral where there are experts."""
    config: Config = (
        _mixtral(metadata)
        if metadata.optional("expert_count")
        else {
            "attention_bias": "blk.0.attn_q.bias" in tensors,
            "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        }
    )
    return config | _scaling(metadata, tensors)


def _scaling(metadata: Metadata, tensors: Tensors) -> Config:
    scaling = linear_or_yarn(metadata)
    if "rope_freqs.weight" in tensors:
        factors = tensors["rope_freqs.weight"].read()
        scaling = llama3_scaling(metadata, factors)
    return {"rope_scaling": scaling} if scaling else {}


def _mixtral(metadata: Metadata) -> Config:
    experts, chosen = counts(metadata)
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": experts,
        "num_experts_per_tok": chosen,
    }


def _biases(tensors: Tensors) -> Config:
    return {"attention_bias": "blk.0.attn_q.bias" in tensors}


def qwen2_moe(metadata: Metadata, tensors: Tensors) -> Config:
    """Qwen1.5-MoE, Qwen2-MoE."""
    experts, chosen = counts(metadata)
    return qwen2(metadata, tensors) | {
        "num_experts": experts,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": inner_channels(metadata),
        "shared_expert_intermediate_size": metadata.count("expert_shared_feed_forward_length"),
    }


def qwen3_moe(metadata: Metadata, tensors: Tensors) -> Config:
    """Qwen3-MoE, whose shares always sum to one."""
    experts, chosen = counts(metadata)
    return qwen3(metadata, tensors) | {
        "num_experts": experts,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": inner_channels(metadata),
        "norm_topk_prob": True,
    }


def gemma3(metadata: Metadata, _: Tensors) -> Config:
    """Gemma 3, its text model."""
    # the scale of the scores is not stored: the model of 62 layers divides by its width per head
    wide = metadata.count("block_count") == 62
    per_head = metadata.count("embedding_length") // metadata.count("attention.head_count")
    scaling = linear_or_yarn(metadata)
    return (
        gemma()
        | {
            "query_pre_attn_scalar": per_head if wide else head_dim(metadata),
            "sliding_window": metadata.count("attention.sliding_window"),
            "rope_theta": metadata.number("rope.freq_base", 1e6),
        }
        | ({"rope_scaling": scaling} if scaling else {})
    )


def olmo2(metadata: Metadata, tensors: Tensors) -> Config:
    """OLMo 2; OLMo 3 where there is a window: its layers without one are stretched."""
    config = _scaling(metadata, tensors)
    if not metadata.optional("attention.sliding_window"):
        return config
    layers = range(metadata.count("block_count"))
    within = metadata.optional("attention.sliding_window_pattern")
    if within is None:
        within = [(layer + 1) % 4 != 0 for layer in layers]
    if not isinstance(within, Sequence) or len(within) != len(layers):
        raise CheckpointError(
            f"{metadata.source}: attention.sliding_window_pattern is {shown(within)}; it must be a "
            f"list of {len(layers)}, a truth value per layer"
        )
    kinds = ["sliding_attention" if each else "full_attention" for each in within]
    return config | {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "sliding_window": metadata.count("attention.sliding_window"),
        "layer_types": kinds,
    }


def ministral3(metadata: Metadata, tensors: Tensors) -> Config:
    """Ministral 3, and models of Mistral whose queries do not grow with their position."""
    scaling = linear_or_yarn(metadata)
    if scaling is None or not metadata.optional("attention.temperature_scale"):
        return llama(metadata, tensors)
    scaling["llama_4_scaling_beta"] = shortest(metadata.number("attention.temperature_scale"))
    if mscale := shortest(metadata.number("rope.scaling.yarn_log_multiplier", 0.0)):
        scaling |= {"mscale": mscale, "mscale_all_dim": mscale}
    return {
        "architectures": ["Ministral3ForCausalLM"],
        "model_type": "ministral3",
        "sliding_window": None,
        "rope_scaling": scaling,
    }


def minicpm(metadata: Metadata, tensors: Tensors) -> Config:
    """MiniCPM 1 and 2, whose scales the file holds for one layer and as a divisor."""
    layers, hidden = metadata.count("block_count"), metadata.count("embedding_length")
    return _scaling(metadata, tensors) | {
        "scale_emb": metadata.number("embedding_scale"),
        "scale_depth": shortest(metadata.number("residual_scale") * layers**0.5),
        "dim_model_base": hidden / metadata.number("logit_scale"),
    }


def phi2(metadata: Metadata, _: Tensors) -> Config:
    """Phi 1, 1.5 and 2."""
    return {"hidden_act": "gelu_new"} | _rotated(metadata)


def stablelm(metadata: Metadata, tensors: Tensors) -> Config:
    """StableLM, but for models that norm their heads."""
    return _rotated(metadata) | {
        "use_qkv_bias": "blk.0.attn_q.bias" in tensors,
        "use_parallel_residual": bool(metadata.optional("use_parallel_residual")),
    }


def plain(*_: Any) -> Config:
    """Return nothing beyond the common keys."""
    return {}


def _rotated(metadata: Metadata) -> Config:
    width = head_dim(metadata)
    return {"partial_rotary_factor": metadata.count("rope.dimension_count", width) / width}


def exaone4(metadata: Metadata, tensors: Tensors) -> Config:
    """EXAONE 4, with windows or without."""
    layers = metadata.count("block_count")
    if metadata.optional("attention.sliding_window"):
        return _scaling(metadata, tensors) | {
            "sliding_window": metadata.count("attention.sliding_window")
        }
    every = {"sliding_window": None, "layer_types": ["full_attention"] * layers}
    return _scaling(metadata, tensors) | every


def smollm3(metadata: Metadata, tensors: Tensors) -> Config:
    """SmolLM3: every fourth layer without positions, which no key says."""
    return _scaling(metadata, tensors) | {"no_rope_layer_interval": 4}


def biased(metadata: Metadata, tensors: Tensors) -> Config:
    """Return the config of a Llama whose biases are found from the tensors."""
    return _scaling(metadata, tensors) | _biases(tensors)


def ernie(metadata: Metadata, tensors: Tensors) -> Config:
    """Ernie 4.5."""
    return _scaling(metadata, tensors) | {"use_bias": "blk.0.attn_q.bias" in tensors}


def ernie_moe(metadata: Metadata, tensors: Tensors) -> Config:
    """Ernie 4.5 with experts."""
    experts, chosen = counts(metadata)
    return ernie(metadata, tensors) | {
        "moe_num_experts": experts,
        "moe_k": chosen,
        "moe_intermediate_size": inner_channels(metadata),
        "moe_layer_start_index": metadata.amount("leading_dense_block_count"),
        "moe_layer_interval": metadata.count("interleave_moe_layer_step", 1),
        "moe_num_shared_experts": num_shared(metadata, tensors, num_layers(metadata) - 1),
    }


def granite(metadata: Metadata, tensors: Tensors) -> Config:
    """Granite and its four factors."""
    return biased(metadata, tensors) | {
        "attention_multiplier": metadata.number("attention.scale"),
        "embedding_multiplier": metadata.number("embedding_scale"),
        "residual_multiplier": metadata.number("residual_scale"),
        "logits_scaling": metadata.number("logit_scale"),
    }


def granite_moe(metadata: Metadata, tensors: Tensors) -> Config:
    """Granite with experts, shared ones too where there are some."""
    experts, chosen = counts(metadata)
    config = granite(metadata, tensors) | {
        "num_local_experts": experts,
        "num_experts_per_tok": chosen,
    }
    if not metadata.optional("expert_shared_feed_forward_length"):
        return config
    return config | {
        "architectures": ["GraniteMoeSharedForCausalLM"],
        "model_type": "granitemoeshared",
        "shared_intermediate_size": metadata.count("expert_shared_feed_forward_length"),
    }


def glm4(metadata: Metadata, tensors: Tensors) -> Config:
    """GLM-4-0414."""
    return biased(metadata, tensors) | _rotated(metadata)


def glm4_moe(metadata: Metadata, tensors: Tensors) -> Config:
    """GLM-4.5 and 4.6."""
    experts, chosen = counts(metadata)
    return glm4(metadata, tensors) | {
        "n_routed_experts": experts,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": inner_channels(metadata),
        "n_shared_experts": num_shared(metadata, tensors, num_layers(metadata) - 1),
        "first_k_dense_replace": metadata.amount("leading_dense_block_count"),
        "norm_topk_prob": bool(metadata.optional("expert_weights_norm")),
        "routed_scaling_factor": metadata.number("expert_weights_scale", 1.0),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in tensors,
    }


def minimax(metadata: Metadata, tensors: Tensors) -> Config:
    """MiniMax-M2."""
    experts, chosen = counts(metadata)
    return _scaling(metadata, tensors) | {
        "num_local_experts": experts,
        "num_experts_per_tok": chosen,
        "intermediate_size": inner_channels(metadata),
        "rotary_dim": metadata.count("rope.dimension_count", head_dim(metadata)),
    }


def qwen2(metadata: Metadata, _: Tensors) -> Config:
    """Qwen1.5 to Qwen2.5."""
    scaling = linear_or_yarn(metadata)
    return {"use_sliding_window": False} | ({"rope_scaling": scaling} if scaling else {})


def qwen3(metadata: Metadata, tensors: Tensors) -> Config:
    """Qwen3."""
    bias = "blk.0.attn_q.bias" in tensors
    return qwen2(metadata, tensors) | {"attention_bias": bias}


def gemma(*_: Any) -> Config:
    """Gemma."""
    return {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}


def gemma2(metadata: Metadata, _: Tensors) -> Config:
    """Gemma 2."""
    # the scale of the scores is not stored: the model of 46 layers divides by its width per head
    wide = metadata.count("block_count") == 46
    per_head = metadata.count("embedding_length") // metadata.count("attention.head_count")
    return gemma() | {
        "query_pre_attn_scalar": per_head if wide else metadata.count("attention.key_length"),
        "sliding_window": metadata.count("attention.sliding_window", 4096),
        "attn_logit_softcapping": metadata.number("attn_logit_softcapping"),
        "final_logit_softcapping": metadata.number("final_logit_softcapping"),
    }


def phi3(metadata: Metadata, tensors: Tensors) -> Config:
    """Phi 3 to 4."""
    config: Config = {
        "original_max_position_embeddings": metadata.count(
            "rope.scaling.original_context_length", metadata.count("context_length")
        ),
        "sliding_window": (
            metadata.count("attention.sliding_window")
            if metadata.optional("attention.sliding_window")
            else None
        ),
    }
    width = head_dim(metadata)
    config["partial_rotary_factor"] = metadata.count("rope.dimension_count", width) / width
    tables = [f"rope_factors_{which}.weight" for which in ("long", "short")]
    if any(table in tensors for table in tables):
        if missing := [table for table in tables if table not in tensors]:
            raise CheckpointError(f"{metadata.source}: {missing[0]} is missing")
        config["rope_scaling"] = {
            "type": "longrope",
            "long_factor": tensors["rope_factors_long.weight"].read().tolist(),
            "short_factor": tensors["rope_factors_short.weight"].read().tolist(),
        }
    return config
