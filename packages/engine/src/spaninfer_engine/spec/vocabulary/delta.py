"""The vocabulary's section of linear attention by the gated delta rule, and its weights' names."""

from __future__ import annotations

from spaninfer_engine.spec.language.typed import FLAG, SIZE, choice, size
from spaninfer_engine.spec.vocabulary.words import Section, Word, name

DELTA = Section(
    "Layers of linear attention by the gated delta rule, which keep a state in place of keys and "
    "values.",
    {
        "layers": Word(FLAG, False, "layers that have it in place of [attn]", per_layer=True),
        "k_heads": Word(SIZE, "$linear_num_key_heads", "heads of queries and keys"),
        "v_heads": Word(SIZE, "$linear_num_value_heads", "heads of values, which have states"),
        "k_dim": Word(SIZE, "$linear_key_head_dim", "channels of a query and a key"),
        "v_dim": Word(SIZE, "$linear_value_head_dim", "channels of a value"),
        "taps": Word(size(2, 64), "$linear_conv_kernel_dim", "inputs that the convolution sums"),
        "projections": Word(
            choice("split", "grouped"),
            "split",
            "[q | k | v], z, b and a; or [q, k, v, z] and [b, a] per key head",
        ),
    },
)

DELTA_NAMES = {
    "delta_qkv": name("linear_attn.in_proj_qkv", "delta rule: [q | k | v]"),
    "delta_z": name("linear_attn.in_proj_z", "delta rule: gate of the output"),
    "delta_b": name("linear_attn.in_proj_b", "delta rule: rates before their sigmoid"),
    "delta_a": name("linear_attn.in_proj_a", "delta rule: decays before their softplus"),
    "delta_qkvz": name("linear_attn.in_proj_qkvz", "delta rule: q, k, v and z of each key head"),
    "delta_ba": name("linear_attn.in_proj_ba", "delta rule: b and a of each key head"),
    "delta_conv": name("linear_attn.conv1d", "delta rule: convolution of q, k and v"),
    "delta_a_log": name("linear_attn.A_log", "delta rule: logarithms of decays; the whole name"),
    "delta_dt_bias": name("linear_attn.dt_bias", "delta rule: bias of a; the whole name"),
    "delta_norm": name("linear_attn.norm", "delta rule: norm of a value head"),
    "delta_o": name("linear_attn.out_proj", "delta rule: output projection"),
}
