"""Every section and key a spec file may have: type, default, and one sentence.

This is the only place where defaults are written down; docs/spec-language.md is printed from it.
A default is a value as a spec would write it. A key without a default must be said by the spec
where it is needed. Names of weights and
towers have files of their own, vocabulary_weights.py and vocabulary_towers.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from spaninfer_engine.spec.mlp_nodes import ActivationName
from spaninfer_engine.spec.typed import (
    BASE,
    COUNT,
    EPSILON,
    FLAG,
    FRACTION,
    INDEX,
    INTEGERS,
    MAX_INDEX,
    NUMBER,
    POSITIVE,
    SIZE,
    TABLE,
    TEXT,
    TEXTS,
    choice,
    optional,
    size,
)
from spaninfer_engine.spec.vocabulary_delta import DELTA
from spaninfer_engine.spec.vocabulary_towers import EXPECT, MEDIA, audio, vision
from spaninfer_engine.spec.vocabulary_weights import (
    AUDIO_WEIGHTS,
    STACK,
    VISION_WEIGHTS,
    WEIGHTS,
)
from spaninfer_engine.spec.words import REQUIRED, Section, Word

MAX_LAYERS = 1_000
MAX_EXPERTS = 10_000

KINDS = ("decoder", "encoder", "encdec", "vlm", "audio_lm")
TOP = {
    "hf": "the values of config.json's `architectures` that this spec is for",
    "model_type": "the values of config.json's `model_type` that this spec is for, where it names "
    "no class; the file's name unless said",
    "needs": "a key that config.json must have, where several specs are for one class; the spec "
    "whose key is there goes before one without",
    "kind": f"{' | '.join(KINDS)}; `decoder` unless said",
    "inherits": "the spec whose keys hold where this one says nothing",
    "checked": "published checkpoints whose config.json gave the published number of parameters",
    "text": "config keys of which the first present one holds the text model's own config",
}

_ACTIVATIONS: tuple[str, ...] = get_args(ActivationName)
_ALIASES = {
    "swish": "silu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "gated-gelu": "gelu_tanh",
    "gated-silu": "silu",
}
ACTIVATION = choice(*_ACTIVATIONS, aliases=_ALIASES)
GATE = choice(*_ACTIVATIONS, "clamped_swiglu", aliases=_ALIASES)
NORM = choice("none", "rms", "layer")

_DIMS = Section(
    "Sizes. Expressions in every section know them by name.",
    {
        "vocab": Word(INDEX, "$padded_vocab_size|vocab_size", "rows of the embedding and the head"),
        "hidden": Word(SIZE, "$hidden_size", "channels of the residual stream"),
        "layers": Word(
            size(most=MAX_LAYERS), "$num_hidden_layers", "how many layers (of the encoder, if both)"
        ),
        "decoder_layers": Word(
            size(most=MAX_LAYERS), "=layers", "how many layers the decoder of a pair has"
        ),
        "extra_layers": Word(
            size(0, MAX_LAYERS),
            "$num_nextn_predict_layers|0",
            "layers stored behind the last that predict further tokens; not used",
        ),
        "heads": Word(SIZE, "$num_attention_heads", "query heads"),
        "kv_heads": Word(SIZE, "$num_key_value_heads|=heads", "key and value heads"),
        "head_dim": Word(SIZE, "$head_dim|=hidden//heads", "channels of a head"),
        "ffn": Word(SIZE, "$intermediate_size", "inner channels of the MLP"),
        "max_pos": Word(INDEX, "$max_position_embeddings|2048", "positions it was made for"),
        "embed": Word(SIZE, "=hidden", "channels of the embedding, where they are projected"),
        "types": Word(COUNT, "$type_vocab_size|0", "rows of the token-type table (BERT)"),
        "q_lora": Word(optional(SIZE), "$q_lora_rank|null", "MLA: width of the query's latent"),
        "kv_lora": Word(SIZE, "$kv_lora_rank", "MLA: width of the latent of keys and values"),
        "qk_nope": Word(SIZE, "$qk_nope_head_dim", "MLA: channels of a head without positions"),
        "qk_rope": Word(SIZE, "$qk_rope_head_dim", "MLA: channels of a head with positions"),
        "v_dim": Word(SIZE, "$v_head_dim", "MLA: channels of a head's value"),
        "index_heads": Word(SIZE, "$index_n_heads", "sparse attention: heads of the indexer"),
        "index_dim": Word(SIZE, "$index_head_dim", "sparse attention: channels of one of them"),
        "buckets": Word(
            SIZE,
            "$relative_attention_num_buckets|32",
            "relative positions: rows of the bias table",
        ),
        "max_distance": Word(
            SIZE,
            "$relative_attention_max_distance|128",
            "relative positions: distance of the last bucket",
        ),
    },
)

_NORM = Section(
    "The norms of the layers and the final one.",
    {
        "type": Word(choice("rms", "layer"), "rms", "root mean square, or mean and variance"),
        "eps": Word(EPSILON, "$rms_norm_eps", "added to the variance"),
        "bias": Word(FLAG, False, "layer norms have a bias"),
        "plus_one": Word(FLAG, False, "weights count from one (Gemma)"),
        "lora_eps": Word(EPSILON, 1e-6, "MLA: eps of the norms of the latents"),
        "index_eps": Word(EPSILON, 1e-6, "sparse attention: eps of the norm of an indexer's keys"),
    },
)

_EMBED = Section(
    "From token ids to the residual stream.",
    {
        "scale": Word(NUMBER, 1.0, "factor on the looked-up rows"),
        "positions": Word(
            choice("none", "learned", "sinusoidal"), "none", "what is added per position"
        ),
        "pos_offset": Word(size(0, MAX_INDEX), 0, "row of the first position"),
        "norm": Word(NORM, "none", "norm behind the positions"),
        "project": Word(FLAG, False, "rows of [dims] embed channels are projected to hidden"),
    },
)

_ATTN = Section(
    "Self-attention.",
    {
        "kind": Word(choice("mha", "mla"), "mha", "grouped heads (also one, also all), or latent"),
        "causal": Word(FLAG, True, "a token sees none behind it"),
        "qkv": Word(
            choice("split", "concat", "grouped"),
            "split",
            "three tensors, [q | k | v], or [q * ratio, k, v] per kv head",
        ),
        "bias": Word(choice("none", "q,k,v", "q,k,v,o"), "none", "projections with a bias"),
        "pos": Word(choice("rope", "alibi", "relative", "none"), "rope", "how positions enter"),
        "rel_buckets": Word(
            size(4, 2**16),
            "$relative_attention_num_buckets|32",
            "rows of the table of relative position biases, an even number",
        ),
        "rel_distance": Word(
            size(2, 2**20),
            "$relative_attention_max_distance|128",
            "from which distance on keys share the last row",
        ),
        "scale": Word(NUMBER, "=head_dim**-0.5", "factor on the scores"),
        "yarn_scale": Word(
            FLAG, False, "times (0.1 * mscale_all_dim * ln factor + 1)**2 under yarn"
        ),
        "softcap": Word(optional(POSITIVE), "null", "scores become cap * tanh(score / cap)"),
        "qk_norm": Word(NORM, "none", "norm of q and k"),
        "qk_norm_over": Word(
            choice("head", "all"),
            "head",
            "it is of every head by itself, or of all in one (OLMo 2)",
        ),
        "qk_norm_place": Word(
            choice("before", "after"), "before", "it comes before positions or after them (Hunyuan)"
        ),
        "window": Word(optional(INDEX), "null", "keys that are kept: i - window < j <= i"),
        "window_layers": Word(FLAG, True, "layers whose window counts", per_layer=True),
        "qk_norm_weights": Word(FLAG, True, "it has weights; else it is that of ones"),
        "qk_norm_layers": Word(FLAG, True, "layers that have it", per_layer=True),
        "llama4_layers": Word(FLAG, True, "layers with a llama4_beta", per_layer=True),
        "chunked": Word(FLAG, False, "windows do not slide: j // window == i // window (Llama 4)"),
        "index_topk": Word(
            optional(SIZE), "null", "MLA: a token reads so many keys, those that an indexer selects"
        ),
        "index_layers": Word(
            FLAG,
            True,
            "layers with an indexer; the others read what the last of these before them selected",
            per_layer=True,
        ),
        "index_style": Word(
            choice("half", "interleaved"), "half", "rope style of an indexer's heads"
        ),
        "gated": Word(
            FLAG,
            False,
            "what a head reads is scaled by sigmoids, stored with q: [q, gate] per head",
        ),
        "sinks": Word(FLAG, False, "each head has one more key, of a stored score and no value"),
        "logn": Word(
            optional(size(2, MAX_INDEX)), "null", "q *= max(1, log(position + 1) to this base)"
        ),
        "llama4_beta": Word(
            optional(NUMBER), "null", "q *= 1 + beta * log(1 + floor((position + offset) / length))"
        ),
        "llama4_length": Word(size(1, MAX_INDEX), REQUIRED, "length in it, where there is a beta"),
        "llama4_offset": Word(size(0, MAX_INDEX), 0, "offset in it"),
        "alibi_scaled": Word(FLAG, False, "the ALiBi bias is scaled with the scores (Falcon)"),
        "alibi_bf16": Word(FLAG, False, "slope * position is rounded to bfloat16 (Falcon)"),
    },
)

_ROPE = Section(
    "Rotary positions, where [attn] pos is rope.",
    {
        "style": Word(
            choice("half", "interleaved"), "half", "rotate (x, x + dim/2) or (2x, 2x + 1)"
        ),
        "layers": Word(FLAG, True, "layers whose heads are rotated", per_layer=True),
        "dim": Word(SIZE, "=head_dim", "channels the fraction is of"),
        "fraction": Word(FRACTION, 1.0, "rotated part of them, from the first on"),
        "theta": Word(
            BASE,
            "$rope_parameters.rope_theta|rope_scaling.rope_theta|rope_theta|10000.0",
            "base",
        ),
        "scaling": Word(
            optional(TABLE),
            "$rope_parameters|rope_scaling|null",
            "how frequencies were stretched: a table with `rope_type` or `type`",
        ),
        "original": Word(
            optional(INDEX),
            "$original_max_position_embeddings|null",
            "positions before stretching; wins over the table's own word",
        ),
        "local_theta": Word(optional(BASE), "null", "base of the layers with a window, if another"),
        "local_scaling": Word(optional(TABLE), "null", "scaling of the layers with a local_theta"),
        "mrope": Word(
            choice("none", "sections", "interleaved"),
            "none",
            "three position axes share the frequencies: in sections, or in turn",
        ),
        "sections": Word(
            INTEGERS, [], "frequencies of each of the three axes, where the table does not say"
        ),
        "ntk_prompt": Word(
            optional(INDEX), "null", "theta grows with prompts longer than this (Qwen-1)"
        ),
        "recompute": Word(
            FLAG, False, "longrope: crossing the original length recomputes every key (Phi-3)"
        ),
    },
)

_MLP = Section(
    "The MLP of the layers that route no tokens.",
    {
        "kind": Word(choice("gated", "plain"), "gated", "down(act(gate) * up), or down(act(up))"),
        "act": Word(
            GATE, "$hidden_act", "activation, also of experts; clamped_swiglu gates alone (gpt-oss)"
        ),
        "fused": Word(FLAG, False, "gate and up are one tensor [gate | up]"),
        "up_first": Word(FLAG, False, "fused, they are [up | gate]"),
        "bias": Word(FLAG, False, "projections have a bias"),
        "down_bias": Word(FLAG, False, "the down projection has one, whether or not the others do"),
    },
)

_MOE = Section(
    "Routed experts.",
    {
        "layers": Word(FLAG, False, "layers with experts", per_layer=True),
        "n": Word(size(most=MAX_EXPERTS), REQUIRED, "how many experts"),
        "top_k": Word(SIZE, "$num_experts_per_tok", "how many see a token"),
        "ffn": Word(SIZE, "$moe_intermediate_size", "inner channels of an expert"),
        "score": Word(choice("softmax", "sigmoid"), "softmax", "logits to scores"),
        "correction": Word(FLAG, False, "a stored bias joins the scores for the choice only"),
        "correction_row": Word(FLAG, False, "that bias is stored as [1, E] (Ernie 4.5)"),
        "norm_topk": Word(FLAG, False, "the chosen weights are made to sum to one"),
        "scale": Word(NUMBER, 1.0, "factor on the weights"),
        "groups": Word(SIZE, 1, "groups of experts"),
        "group_topk": Word(SIZE, 1, "how many groups may be chosen from"),
        "group_score": Word(
            choice("max", "top2"), "max", "a group's score: best, or sum of best two"
        ),
        "shared": Word(
            choice("none", "plain", "gated"),
            "none",
            "an MLP for every token; gated: times the sigmoid of its own gate",
        ),
        "shared_ffn": Word(SIZE, REQUIRED, "its inner channels"),
        "shared_fused": Word(FLAG, False, "its gate and up projections are one"),
        "input_scaled": Word(FLAG, False, "the one expert's share scales its input (Llama 4)"),
        "bias": Word(FLAG, False, "the router has a bias"),
        "expert_bias": Word(FLAG, False, "stacked experts have biases"),
        "in_turn": Word(FLAG, False, "in stacked experts gate and up take turns (gpt-oss)"),
        "experts": Word(
            TEXTS,
            ["each", "stacked_oi"],
            "storage: `each` expert alone, `stacked_oi` [E, 2I, H], `stacked_io` [E, H, 2I]",
        ),
    },
)

_BLOCK = Section(
    "How attention and MLP join the residual stream; which norms there are is said in [weights].",
    {
        "parallel": Word(FLAG, False, "both read the layer's input"),
        "residual_scale": Word(NUMBER, 1.0, "factor on what is added"),
        "first_attn_pre": Word(
            FLAG, True, "the first layer has a norm of the attention's input like the others"
        ),
    },
)

_HEAD = Section(
    "From the residual stream to logits.",
    {
        "tied": Word(
            FLAG,
            "$tie_word_embeddings|false",
            "the embedding's table is the head; a head that is stored wins",
        ),
        "bias": Word(FLAG, False, "the head has a bias"),
        "project": Word(FLAG, False, "hidden is projected to [dims] embed channels before"),
        "scale": Word(NUMBER, 1.0, "factor on the logits"),
        "softcap": Word(optional(POSITIVE), "null", "logits become cap * tanh(logit / cap)"),
        "normalize": Word(FLAG, False, "rows divided by their length (Baichuan2)"),
        "mlm": Word(
            FLAG, False, "masked-token head: dense, activation, norm, tied table, bias (BERT)"
        ),
        "classifier": Word(FLAG, False, "encoders: a pooled vector becomes a logit per label"),
        "label_pool": Word(choice("cls", "mean", "last"), "cls", "how a classifier pools"),
        "label_act": Word(
            choice("identity", "tanh", "gelu", "relu"), "tanh", "activation of its dense layer"
        ),
        "label_bias": Word(FLAG, True, "its dense layer has a bias"),
        "labels": Word(optional(TABLE), "$id2label|null", "names of labels by number"),
        "problem": Word(
            optional(TEXT), "$problem_type|null", "are labels told apart, or each alone"
        ),
        "score_act": Word(
            optional(TEXT),
            "$sentence_transformers.activation_fn|sbert_ce_default_activation_function|null",
            "class of what makes probabilities of logits",
        ),
    },
)


_CONFIG = Section(
    "What config.json must say, and what of it does not matter. A key that no value mentions is "
    "reported; where it would change the mathematics it is an error.",
    {
        "ignore": Word(TEXTS, [], "config keys that do not matter for this architecture"),
        "unused": Word(
            TEXTS, [], "config keys that the authors' own code does not read: reported, no error"
        ),
    },
)

_EXPECT = Section(
    "Config keys and the values that are implemented; an absent or null key is fine.",
    {},
    is_open=True,
)

_DEFAULT = Section(
    "Config keys and what they mean where config.json does not have them: the defaults of the "
    "authors' config class. A key that is null is there.",
    {},
    is_open=True,
)

_LET = Section("Names of the spec's own, for its expressions.", {}, is_open=True)

SECTIONS: Mapping[str, Section] = {
    "config": _CONFIG,
    "config.expect": _EXPECT,
    "config.default": _DEFAULT,
    "let": _LET,
    "dims": _DIMS,
    "norm": _NORM,
    "embed": _EMBED,
    "attn": _ATTN,
    "delta": DELTA,
    "rope": _ROPE,
    "mlp": _MLP,
    "moe": _MOE,
    "block": _BLOCK,
    "head": _HEAD,
    "weights": WEIGHTS,
    "weights.encoder": STACK,
    "weights.decoder": STACK,
    "media": MEDIA,
    "vision": vision(ACTIVATION),
    "vision.expect": EXPECT,
    "vision.weights": VISION_WEIGHTS,
    "audio": audio(ACTIVATION),
    "audio.expect": EXPECT,
    "audio.weights": AUDIO_WEIGHTS,
}
