"""The vocabulary's sections of weight names."""

from __future__ import annotations

from spaninfer_engine.spec.language.typed import TEXTS
from spaninfer_engine.spec.vocabulary.delta import DELTA_NAMES
from spaninfer_engine.spec.vocabulary.words import Section, Word, name

_LAYER_NAMES = {
    "layer": name("layers.{i}.", "prefix of layer i"),
    "attn_pre": name("input_layernorm", "norm of the attention's input"),
    "attn_post": name("", "norm of its output, before it is added"),
    "attn_after": name("", "norm of the sum"),
    "mlp_pre": name("post_attention_layernorm", "norm of the MLP's input"),
    "mlp_post": name("", "norm of its output, before it is added"),
    "mlp_after": name("", "norm of the sum"),
    "q": name("self_attn.q_proj", "query projection"),
    "k": name("self_attn.k_proj", "key projection"),
    "v": name("self_attn.v_proj", "value projection"),
    "o": name("self_attn.o_proj", "output projection"),
    "gate": name("mlp.gate_proj", "gate projection"),
    "up": name("mlp.up_proj", "up projection"),
    "down": name("mlp.down_proj", "down projection"),
    "final_norm": name("norm", "norm behind the last layer"),
    "rel_bias": name("", "table of relative position biases"),
}

_CROSS_NAMES = {
    "cross_pre": name("", "norm of the cross-attention's input"),
    "cross_q": name("", "its query projection"),
    "cross_k": name("", "its key projection"),
    "cross_v": name("", "its value projection"),
    "cross_o": name("", "its output projection"),
}

WEIGHTS = Section(
    "Names in the checkpoint, without `.weight` and `.bias`. An empty name: there is no such part. "
    "Of a list, the first name that the checkpoint has counts. All but `head` "
    "and the names of a classifier follow `prefix`.",
    {
        "prefix": name(["model.", ""], "what precedes every name; base models are saved without"),
        "embed": name("embed_tokens", "embedding table"),
        "pos_embed": name("embed_positions", "learned positions"),
        "type_embed": name("", "token types"),
        "embed_norm": name("", "norm of the embedding"),
        "embed_proj": name("project_in", "projection of the embedding"),
        "head_proj": name("project_out", "projection before the head"),
        "head": name("lm_head", "head"),
        **_LAYER_NAMES,
        "qkv": name("self_attn.qkv_proj", "fused projections of the attention"),
        "q_norm": name("self_attn.q_norm", "norm of a query head"),
        "k_norm": name("self_attn.k_norm", "norm of a key head"),
        "sinks": name("self_attn.sinks", "scores of heads for no key; the whole name"),
        "q_a": name("self_attn.q_a_proj", "MLA: hidden to query latent"),
        "q_a_norm": name("self_attn.q_a_layernorm", "MLA: norm of the query latent"),
        "q_b": name("self_attn.q_b_proj", "MLA: query latent to heads"),
        "kv_a": name("self_attn.kv_a_proj_with_mqa", "MLA: hidden to [latent | rotated key]"),
        "kv_a_norm": name("self_attn.kv_a_layernorm", "MLA: norm of the latent"),
        "kv_b": name("self_attn.kv_b_proj", "MLA: latent to heads of [key | value]"),
        "index_q": name("self_attn.indexer.wq_b", "indexer: query latent to heads"),
        "index_k": name("self_attn.indexer.wk", "indexer: hidden to key"),
        "index_k_norm": name("self_attn.indexer.k_norm", "indexer: norm of the key"),
        "index_weights": name("self_attn.indexer.weights_proj", "indexer: weights of heads"),
        **DELTA_NAMES,
        "gate_up": name("mlp.gate_up_proj", "fused gate and up projection"),
        "router": name("mlp.gate", "router"),
        "router_bias": name("mlp.gate.e_score_correction_bias", "correction; the whole name"),
        "expert": name("mlp.experts.{e}.", "prefix of expert e"),
        "expert_gate": name("gate_proj", "an expert's gate projection"),
        "expert_up": name("up_proj", "an expert's up projection"),
        "expert_down": name("down_proj", "an expert's down projection"),
        "experts_gate_up": name("mlp.experts.gate_up_proj", "stacked experts; the whole name"),
        "experts_down": name("mlp.experts.down_proj", "stacked experts; the whole name"),
        "experts_gate_up_bias": name(
            "mlp.experts.gate_up_proj_bias", "biases of stacked experts; the whole name"
        ),
        "experts_down_bias": name(
            "mlp.experts.down_proj_bias", "biases of stacked experts; the whole name"
        ),
        "shared": name("mlp.shared_experts.", "prefix of the shared expert"),
        "shared_gate_up": name("gate_up_proj", "the shared expert's fused gate and up projection"),
        "shared_down": name("down_proj", "the shared expert's down projection, where it is fused"),
        "shared_gate": name("mlp.shared_expert_gate", "gate of the shared expert"),
        "mlm_dense": name("", "masked-token head: dense layer"),
        "mlm_norm": name("", "masked-token head: norm"),
        "mlm_bias": name("", "masked-token head: bias; the whole name"),
        "pooler": name("", "dense layer on the first token"),
        "label_dense": name("", "classifier: dense layer"),
        "label_norm": name("", "classifier: norm behind it"),
        "label_out": name("", "classifier: projection to labels"),
        "ignore": Word(
            TEXTS,
            [
                "*.inv_freq",
                "*.attn.bias",
                "*.attn.masked_bias",
                "*.attention.bias",
                "*.attention.masked_bias",
                "*embeddings.position_ids",
                "*embed_positions.weights",
            ],
            "patterns of stored tensors that are no weights: tables anyone can recompute",
        ),
    },
)

STACK = Section("Names of one half of a pair, where it differs.", {**_LAYER_NAMES, **_CROSS_NAMES})

_TOWER_NAMES = {
    "prefix": name("", "what precedes every name"),
    "layer": name("layers.{i}.", "prefix of layer i"),
    "norm1": name("norm1", "norm of the attention's input"),
    "norm2": name("norm2", "norm of the MLP's input"),
    "o": name("attn.proj", "output projection"),
    "up": name("mlp.fc1", "up projection"),
    "down": name("mlp.fc2", "down projection"),
    "scale1": name("", "factors of the attention's output; the whole name"),
    "scale2": name("", "factors of the MLP's output; the whole name"),
    "pos": name("", "learned positions; the whole name"),
}

VISION_WEIGHTS = Section(
    "Names of the vision tower.",
    {
        **_TOWER_NAMES,
        "patch": name("patch_embed.proj", "patch embedding"),
        "qkv": name("attn.qkv", "fused projections"),
        "q": name("self_attn.q_proj", "query projection"),
        "k": name("self_attn.k_proj", "key projection"),
        "v": name("self_attn.v_proj", "value projection"),
        "q_norm": name("", "norm of the queries"),
        "k_norm": name("", "norm of the keys"),
        "gate": name("mlp.gate_proj", "gate projection"),
        "class": name("", "class token beside the patches of a tile; the whole name"),
        "pre_norm": name("", "norm in front of the first layer"),
        "final_norm": name("", "norm behind the last layer"),
        "merger_prefix": name(
            "", "what precedes names of the merger; otherwise, what precedes all"
        ),
        "merger_query": name("", "resampler: queries; the whole name"),
        "merger_pos": name("", "resampler: positions of queries and keys; the whole name"),
        "merger_kv": name("", "resampler: projection of what is read to its channels"),
        "merger_q_norm": name("", "resampler: norm of the queries"),
        "merger_kv_norm": name("", "resampler: norm of what is read"),
        "merger_qkv": name("", "resampler: projections, one below the other; the whole name"),
        "merger_qkv_bias": name("", "resampler: their bias; the whole name"),
        "merger_o": name("", "resampler: output projection"),
        "merger_norm": name("", "merger: norm"),
        "merger_join": name("", "merger: projection of a row's patches to one"),
        "merger_up": name("merger.linear_fc1", "merger: first layer"),
        "merger_down": name("merger.linear_fc2", "merger: second layer"),
        "merger_project": name("", "merger: projection behind the MLP"),
        "deep_norm": name("", "deepstack merger j: norm"),
        "deep_up": name("", "deepstack merger j: first layer"),
        "deep_down": name("", "deepstack merger j: second layer"),
        "extra": name("", "rows between those of patches; the whole name"),
    },
)

AUDIO_WEIGHTS = Section(
    "Names of the audio tower.",
    {
        **_TOWER_NAMES,
        "q": name("self_attn.q_proj", "query projection"),
        "k": name("self_attn.k_proj", "key projection"),
        "v": name("self_attn.v_proj", "value projection"),
        "conv1": name("conv1", "first convolution"),
        "conv2": name("conv2", "second convolution"),
        "final_norm": name("layer_norm", "norm behind the last layer"),
        "projector": name("", "projection to the text's channels; the whole name"),
        "extra": name("", "rows in front of and behind those of a clip; the whole name"),
    },
)
