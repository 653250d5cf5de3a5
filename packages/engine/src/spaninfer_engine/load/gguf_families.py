"""GGUF architectures mapped to Hugging Face: config keys, tensor names, row order.

An architecture is here only if nothing of its config must be guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spaninfer_engine.errors import CheckpointError, ConfigError
from spaninfer_engine.load.gguf_metadata import Metadata
from spaninfer_engine.load.gguf_rope import linear_or_yarn, llama3_scaling
from spaninfer_engine.load.reader import Entry
from spaninfer_engine.load.rows import halved_rows

OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
GEMMA2_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
PHI3_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
ROPE_TABLES = re.compile(r"(blk\.\d+\.)?rope_(freqs|factors_long|factors_short)\.weight")

Config = dict[str, Any]
Tensors = Mapping[str, Entry]


@dataclass(frozen=True)
class MinusOne:
    """A norm weight that GGUF stores as 1 + weight, read as Hugging Face stores it."""

    stored: Entry

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.stored.shape

    @property
    def dtype(self) -> np.dtype:
        """The number format."""
        return self.stored.dtype

    def read(self) -> np.ndarray:
        """A copy, one less."""
        array = self.stored.read()
        less: np.ndarray = array - array.dtype.type(1)
        return less


@dataclass(frozen=True)
class Family:
    """What is special about one architecture's files."""

    hf_class: str
    model_type: str
    extra: Callable[[Metadata, Tensors], Config]  # config keys beyond the common ones
    layer_names: Mapping[str, str]
    pairs_rows: bool = False  # query and key rows come in pairs (see rows.py)
    norms_plus_one: bool = False
    rotates_part: bool = False  # of every head, where the file says so

    def config(self, metadata: Metadata, tensors: Tensors) -> Config:
        """The config.json equivalent, but for what the vocabulary says."""
        num_heads = metadata.count("attention.head_count")
        hidden = metadata.count("embedding_length")
        head_dim = _head_dim(metadata)
        self._check_rotated(metadata, head_dim)
        return {
            "architectures": [self.hf_class],
            "model_type": self.model_type,
            "hidden_size": hidden,
            "intermediate_size": metadata.count("feed_forward_length"),
            "num_hidden_layers": metadata.count("block_count"),
            "num_attention_heads": num_heads,
            "num_key_value_heads": metadata.count("attention.head_count_kv", num_heads),
            "head_dim": head_dim,
            "max_position_embeddings": metadata.count("context_length"),
            "rms_norm_eps": _shortest(metadata.number("attention.layer_norm_rms_epsilon")),
            "rope_theta": metadata.number("rope.freq_base", 10000.0),
            "hidden_act": "silu",
        } | self.extra(metadata, tensors)

    def _check_rotated(self, metadata: Metadata, head_dim: int) -> None:
        """Refuse heads that are rotated in part where the architecture's config cannot say so."""
        rotated = metadata.count("rope.dimension_count", head_dim)
        values = metadata.count("attention.value_length", head_dim)
        if values != head_dim:
            raise ConfigError(
                f"{metadata.source}: attention.value_length is {values}, and heads have {head_dim} "
                "channels; heads whose values have another size are not read from GGUF"
            )
        if rotated == head_dim or (self.rotates_part and rotated < head_dim):
            return
        allowed = f"2 to {head_dim}" if self.rotates_part else f"{head_dim}, all channels of a head"
        raise ConfigError(
            f"{metadata.source}: rope.dimension_count is {rotated}; in a {metadata.architecture} "
            f"model of this size it must be {allowed}"
        )

    def rename(self, metadata: Metadata, tensors: Tensors) -> dict[str, Entry]:
        """The entries under Hugging Face names, in Hugging Face row order."""
        heads = {"q_proj": metadata.count("attention.head_count")}
        heads["k_proj"] = metadata.count("attention.head_count_kv", heads["q_proj"])
        entries: dict[str, Entry] = {}
        for name, stored in tensors.items():
            if ROPE_TABLES.fullmatch(name):
                continue  # part of the config
            new = self._new_name(metadata, name)
            projection = new.split(".")[-2]
            if self.pairs_rows and projection in heads:
                entries[new] = halved_rows(stored, heads[projection])
            elif self.norms_plus_one and projection.endswith("norm"):
                entries[new] = MinusOne(stored)
            else:
                entries[new] = stored
        return entries

    def _new_name(self, metadata: Metadata, name: str) -> str:
        stem, _, kind = name.rpartition(".")
        found = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        if found and found[2] in self.layer_names and kind in ("weight", "bias"):
            return f"model.layers.{found[1]}.{self.layer_names[found[2]]}.{kind}"
        if stem in OUTER and kind in ("weight", "bias"):
            return f"{OUTER[stem]}.{kind}"
        raise CheckpointError(
            f"{metadata.source}: tensor {name!r} has no place in a {metadata.architecture} model"
        )


def _head_dim(metadata: Metadata) -> int:
    """How many channels a head has."""
    hidden, heads = metadata.count("embedding_length"), metadata.count("attention.head_count")
    return metadata.count("attention.key_length", hidden // heads)


def _shortest(value: float) -> float:
    """The decimal that was meant by a float32: 1e-05 and not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _llama(metadata: Metadata, tensors: Tensors) -> Config:
    if metadata.optional("expert_count"):
        raise ConfigError(
            f"{metadata.source} has {metadata.optional('expert_count')} experts per layer; "
            "mixtures of experts are not read from GGUF yet, use the Hugging Face folder"
        )
    config: Config = {
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
    }
    scaling = linear_or_yarn(metadata)
    if "rope_freqs.weight" in tensors:
        factors = tensors["rope_freqs.weight"].read()
        scaling = llama3_scaling(metadata, factors)
    if scaling:
        config["rope_scaling"] = scaling
    return config


def _qwen2(metadata: Metadata, _: Tensors) -> Config:
    scaling = linear_or_yarn(metadata)
    return {"use_sliding_window": False} | ({"rope_scaling": scaling} if scaling else {})


def _qwen3(metadata: Metadata, tensors: Tensors) -> Config:
    bias = "blk.0.attn_q.bias" in tensors
    return _qwen2(metadata, tensors) | {"attention_bias": bias}


def _gemma(*_: Any) -> Config:
    return {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(metadata: Metadata, _: Tensors) -> Config:
    # the scale of the scores is not stored: the model of 46 layers divides by its width per head
    wide = metadata.count("block_count") == 46
    per_head = metadata.count("embedding_length") // metadata.count("attention.head_count")
    return _gemma() | {
        "query_pre_attn_scalar": per_head if wide else metadata.count("attention.key_length"),
        "sliding_window": metadata.count("attention.sliding_window", 4096),
        "attn_logit_softcapping": metadata.number("attn_logit_softcapping"),
        "final_logit_softcapping": metadata.number("final_logit_softcapping"),
    }


def _phi3(metadata: Metadata, tensors: Tensors) -> Config:
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
    head_dim = _head_dim(metadata)
    config["partial_rotary_factor"] = metadata.count("rope.dimension_count", head_dim) / head_dim
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


FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", "llama", _llama, LAYER, pairs_rows=True),
    "qwen2": Family("Qwen2ForCausalLM", "qwen2", _qwen2, LAYER),
    "qwen3": Family("Qwen3ForCausalLM", "qwen3", _qwen3, LAYER | QK_NORMS),
    "gemma": Family("GemmaForCausalLM", "gemma", _gemma, LAYER, norms_plus_one=True),
    "gemma2": Family(
        "Gemma2ForCausalLM", "gemma2", _gemma2, LAYER | GEMMA2_NORMS, norms_plus_one=True
    ),
    "phi3": Family("Phi3ForCausalLM", "phi3", _phi3, LAYER | PHI3_FUSED, rotates_part=True),
}
"""Architectures by the name in `general.architecture`."""


def find_family(metadata: Metadata) -> Family:
    """The family of a file; ConfigError for one that is not known."""
    if metadata.architecture not in FAMILIES:
        raise ConfigError(
            f"{metadata.source} is a {metadata.architecture!r} model; from GGUF are read "
            f"{', '.join(FAMILIES)}; other architectures can be read from Hugging Face folders"
        )
    return FAMILIES[metadata.architecture]
