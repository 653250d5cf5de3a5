"""The vocabulary's sections of attention and of rotary embedding."""

from __future__ import annotations

from spaninfer_engine.spec.language.typed import (
    BASE,
    FLAG,
    FRACTION,
    INDEX,
    INTEGERS,
    MAX_INDEX,
    NUMBER,
    POSITIVE,
    SIZE,
    TABLE,
    choice,
    optional,
    size,
)
from spaninfer_engine.spec.vocabulary.words import NORM, REQUIRED, Section, Word

ATTN = Section(
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
            optional(SIZE), "null", "MLA: each token reads this many keys, selected by an indexer"
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

ROPE = Section(
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
