"""Every section and key a spec file may have: type, default, and one sentence.

This is the only place where defaults are written down; docs/spec-language.md is printed from it.
A default is a value as a spec would write it. A key without a default must be said by the spec
where it is needed. Names of weights, towers, attention and MLPs have files beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping

from spaninfer_engine.spec.language.typed import (
    COUNT,
    EPSILON,
    FLAG,
    INDEX,
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
from spaninfer_engine.spec.vocabulary.attention import ATTN, ROPE
from spaninfer_engine.spec.vocabulary.delta import DELTA
from spaninfer_engine.spec.vocabulary.mlp import ACTIVATION, MLP, MOE
from spaninfer_engine.spec.vocabulary.towers import EXPECT, MEDIA, audio, vision
from spaninfer_engine.spec.vocabulary.weights import AUDIO_WEIGHTS, STACK, VISION_WEIGHTS, WEIGHTS
from spaninfer_engine.spec.vocabulary.words import NORM, Section, Word

MAX_LAYERS = 1_000

KINDS = ("decoder", "encoder", "encdec", "vlm", "audio_lm")

TOP = {
    "hf": "the values of config.json's `architectures` that this spec is for",
    "model_type": "the values of config.json's `model_type` that this spec is for, where it names "
    "no class; the file's name unless said",
    "needs": "what config.json must have, where several specs are for one class: `key`, or "
    "`key=value`, of a table inside it too (`text_config.model_type=qwen3`); of the specs that it "
    "fits, the one that needs most goes first",
    "kind": f"{' | '.join(KINDS)}; `decoder` unless said",
    "inherits": "the spec whose keys hold where this one says nothing",
    "tower": "the spec whose [media], [vision] and [audio] hold, rather than those of `inherits`, "
    "where this one says nothing",
    "checked": "published checkpoints whose config.json gave the published number of parameters",
    "text": "config keys of which the first present one holds the text model's own config",
}


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
    "attn": ATTN,
    "delta": DELTA,
    "rope": ROPE,
    "mlp": MLP,
    "moe": MOE,
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
