"""GGUF architectures mapped to Hugging Face: config keys, tensor names, row order.

An architecture is here only if nothing of its config must be guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spaninfer_engine.errors import CheckpointError, ConfigError
from spaninfer_engine.load.gguf import configs
from spaninfer_engine.load.gguf.configs import Config, Tensors
from spaninfer_engine.load.gguf.experts import (
    EXPERTS,
    GRANITE_SHARED,
    MIXTRAL,
    QWEN_SHARED,
    SHARED,
    Reshaped,
    with_shared_in_one,
)
from spaninfer_engine.load.gguf.gpt_oss import GPT_OSS, gpt_oss, with_stacked_experts
from spaninfer_engine.load.gguf.latents import LATENTS, deepseek2, with_joined_heads
from spaninfer_engine.load.gguf.metadata import Metadata, shortest
from spaninfer_engine.load.tensors.made import MadeArray
from spaninfer_engine.load.tensors.reader import Entry
from spaninfer_engine.load.tensors.rows import halved_rows

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
PHI2 = {"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
PHI3_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
BEHIND = {  # norms of outputs, where there is none of inputs
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GLM4 = {
    "post_attention_norm": "post_self_attn_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "post_ffw_norm": "post_mlp_layernorm",
}
HUNYUAN_NORMS = {
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
}
SECOND_NORM = {"post_attention_norm": "post_attention_layernorm"}  # of the MLP's input
CORRECTION = "exp_probs_b.bias"
ROPE_TABLES = re.compile(r"(blk\.\d+\.)?rope_(freqs|factors_long|factors_short)\.weight")


def _minus_one(stored: Entry) -> Entry:
    """Return a norm's weight that GGUF stores as 1 + weight as Hugging Face stores it."""
    one = stored.dtype.type(1)
    return MadeArray(stored.shape, stored.dtype, lambda: stored.read() - one)


def _as_they_are(_: Metadata, entries: dict[str, Entry]) -> dict[str, Entry]:
    return entries


@dataclass(frozen=True)
class Family:
    """The conventions of one architecture's files."""

    hf_class: str
    model_type: str
    extra: Callable[[Metadata, Tensors], Config]  # config keys beyond the common ones
    layer_names: Mapping[str, str]
    pairs_rows: bool = False  # query and key rows come in pairs (see rows.py)
    norms_plus_one: bool = False
    rotates_part: bool = False  # of every head, where the file says so
    correction: str = ""  # whole name of the bias that joins the choice of experts
    eps: str = "rms_norm_eps"  # the config's key
    has_layer_norms: bool = False
    outer: Mapping[str, str] = field(default_factory=lambda: OUTER)
    flat: tuple[str, ...] = ()  # ends of the names that Hugging Face stores as [1, n], GGUF as [n]
    has_latents: bool = False  # sizes of heads are not those of keys and values
    arrange: Callable[[Metadata, dict[str, Entry]], dict[str, Entry]] = _as_they_are

    def config(self, metadata: Metadata, tensors: Tensors) -> Config:
        """The config.json equivalent, but for what the vocabulary says."""
        num_heads = metadata.count("attention.head_count")
        hidden = metadata.count("embedding_length")
        head_dim = configs.head_dim(metadata)
        kind = "" if self.has_layer_norms else "rms_"
        if not self.has_latents:
            self._check_rotated(metadata, head_dim)
        return {
            "architectures": [self.hf_class],
            "model_type": self.model_type,
            "hidden_size": hidden,
            "intermediate_size": metadata.count("feed_forward_length"),
            "num_hidden_layers": configs.num_layers(metadata),
            "num_attention_heads": num_heads,
            "num_key_value_heads": metadata.count("attention.head_count_kv", num_heads),
            "head_dim": head_dim,
            "max_position_embeddings": metadata.count("context_length"),
            self.eps: shortest(metadata.number(f"attention.layer_norm_{kind}epsilon")),
            "rope_theta": metadata.number("rope.freq_base", 10000.0),
            "hidden_act": "silu",
        } | self.extra(metadata, tensors)

    def _check_rotated(self, metadata: Metadata, head_dim: int) -> None:
        """Refuse heads that are rotated in part where the architecture's config cannot say so."""
        rotated = metadata.count("rope.dimension_count", head_dim)
        values = metadata.count("attention.value_length", head_dim)
        if values != head_dim:
            raise ConfigError(
                f"{metadata.source}: attention.value_length is {values}, and heads have "
                f"{head_dim} channels; heads whose values have another size are not "
                "supported in GGUF files"
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
            if ROPE_TABLES.fullmatch(name) or _predicts_further(metadata, name):
                continue  # part of the config, or a layer that is not used
            new = self._new_name(metadata, name)
            projection = new.split(".")[-2]
            if new.endswith(self.flat) and len(stored.shape) == 1:
                entries[new] = Reshaped(stored, (1, *stored.shape))
            elif self.pairs_rows and projection in heads:
                entries[new] = halved_rows(stored, heads[projection])
            elif self.norms_plus_one and projection.endswith("norm"):
                entries[new] = _minus_one(stored)
            else:
                entries[new] = stored
        return self.arrange(metadata, entries)

    def _new_name(self, metadata: Metadata, name: str) -> str:
        stem, _, kind = name.rpartition(".")
        found = re.fullmatch(r"blk\.(\d+)\.(\w+)(?:\.(\d+))?", stem)
        if found and self.correction and f"{found[2]}.{kind}" == CORRECTION:
            return f"model.layers.{found[1]}.{self.correction}"
        if found and found[2] in self.layer_names and kind in ("weight", "bias"):
            new = self.layer_names[found[2]].format(e=found[3])
            return f"model.layers.{found[1]}.{new}.{kind}"
        if stem in self.outer and kind in ("weight", "bias"):
            return f"{self.outer[stem]}.{kind}"
        raise CheckpointError(
            f"{metadata.source}: tensor {name!r} has no place in a {metadata.architecture} model"
        )


def _predicts_further(metadata: Metadata, name: str) -> bool:
    found = re.match(r"blk\.(\d+)\.", name)
    return found is not None and int(found[1]) >= configs.num_layers(metadata)


FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", "llama", configs.llama, LAYER | MIXTRAL, pairs_rows=True),
    "internlm2": Family("LlamaForCausalLM", "llama", configs.llama, LAYER, pairs_rows=True),
    "smollm3": Family("SmolLM3ForCausalLM", "smollm3", configs.smollm3, LAYER, pairs_rows=True),
    "granite": Family("GraniteForCausalLM", "granite", configs.granite, LAYER, pairs_rows=True),
    "granitemoe": Family(
        "GraniteMoeForCausalLM",
        "granitemoe",
        configs.granite_moe,
        LAYER | EXPERTS | GRANITE_SHARED | {"ffn_gate_inp": "block_sparse_moe.router.layer"},
        pairs_rows=True,
        arrange=with_shared_in_one,
    ),
    "mistral3": Family("LlamaForCausalLM", "llama", configs.ministral3, LAYER, pairs_rows=True),
    "minicpm": Family("MiniCPMForCausalLM", "minicpm", configs.minicpm, LAYER, pairs_rows=True),
    "orion": Family("OrionForCausalLM", "orion", configs.plain, LAYER, has_layer_norms=True),
    "stablelm": Family(
        "StableLmForCausalLM",
        "stablelm",
        configs.stablelm,
        LAYER,
        rotates_part=True,
        eps="layer_norm_eps",
        has_layer_norms=True,
    ),
    "phi2": Family(
        "PhiForCausalLM",
        "phi",
        configs.phi2,
        LAYER | PHI2,
        rotates_part=True,
        eps="layer_norm_eps",
        has_layer_norms=True,
        outer=OUTER | {"output_norm": "model.final_layernorm"},
    ),
    "qwen2moe": Family(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        configs.qwen2_moe,
        LAYER | EXPERTS | QWEN_SHARED,
        flat=("shared_expert_gate.weight",),
    ),
    "qwen3moe": Family(
        "Qwen3MoeForCausalLM", "qwen3_moe", configs.qwen3_moe, LAYER | QK_NORMS | EXPERTS
    ),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        "gemma3_text",
        configs.gemma3,
        LAYER | GEMMA2_NORMS | QK_NORMS,
        norms_plus_one=True,
    ),
    "olmo2": Family("Olmo2ForCausalLM", "olmo2", configs.olmo2, LAYER | QK_NORMS | BEHIND),
    "exaone4": Family("Exaone4ForCausalLM", "exaone4", configs.exaone4, LAYER | QK_NORMS | BEHIND),
    "seed_oss": Family("SeedOssForCausalLM", "seed_oss", configs.biased, LAYER | SECOND_NORM),
    "hunyuan-dense": Family(
        "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", configs.biased, LAYER | HUNYUAN_NORMS
    ),
    "ernie4_5": Family("Ernie4_5ForCausalLM", "ernie4_5", configs.ernie, LAYER),
    "ernie4_5-moe": Family(
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5_moe",
        configs.ernie_moe,
        LAYER | EXPERTS | SHARED,
        correction="mlp.moe_statics.e_score_correction_bias",
        flat=("e_score_correction_bias",),
    ),
    "glm4": Family("Glm4ForCausalLM", "glm4", configs.glm4, LAYER | GLM4, rotates_part=True),
    "glm4moe": Family(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        configs.glm4_moe,
        LAYER | QK_NORMS | SECOND_NORM | EXPERTS | SHARED,
        rotates_part=True,
        correction="mlp.gate.e_score_correction_bias",
    ),
    "minimax-m2": Family(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        configs.minimax,
        LAYER | QK_NORMS | MIXTRAL,
        rotates_part=True,
        correction="block_sparse_moe.e_score_correction_bias",
    ),
    "deepseek2": Family(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        deepseek2,
        LAYER | LATENTS | EXPERTS | SHARED,
        correction="mlp.gate.e_score_correction_bias",
        has_latents=True,
        arrange=with_joined_heads,
    ),
    "gpt-oss": Family(
        "GptOssForCausalLM",
        "gpt_oss",
        gpt_oss,
        LAYER | SECOND_NORM | GPT_OSS,
        arrange=with_stacked_experts,
    ),
    "qwen2": Family("Qwen2ForCausalLM", "qwen2", configs.qwen2, LAYER),
    "qwen3": Family("Qwen3ForCausalLM", "qwen3", configs.qwen3, LAYER | QK_NORMS),
    "gemma": Family("GemmaForCausalLM", "gemma", configs.gemma, LAYER, norms_plus_one=True),
    "gemma2": Family(
        "Gemma2ForCausalLM", "gemma2", configs.gemma2, LAYER | GEMMA2_NORMS, norms_plus_one=True
    ),
    "phi3": Family("Phi3ForCausalLM", "phi3", configs.phi3, LAYER | PHI3_FUSED, rotates_part=True),
}
"""Architectures by the name in `general.architecture`."""


def find_family(metadata: Metadata) -> Family:
    """The family of a file; ConfigError for one that is not known."""
    if metadata.architecture not in FAMILIES:
        raise ConfigError(
            f"{metadata.source} is a {metadata.architecture!r} model; supported in GGUF "
            f"files are {', '.join(FAMILIES)}; other architectures can be read from "
            "Hugging Face folders"
        )
    return FAMILIES[metadata.architecture]
