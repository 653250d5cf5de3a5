from __future__ import annotations

from typing import Any

import pytest
from spaninfer_engine.errors import SpecError
from spaninfer_engine.spec import UnreadConfigKeys, load, resolve
from spaninfer_engine.spec.account import DECISIVE, INERT
from spaninfer_engine.spec.resolve import resolve_fully

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}


def test_keys_that_are_read_or_inert_or_null_are_not_reported() -> None:
    config = {**LLAMA, "torch_dtype": "bfloat16", "use_cache": True, "sliding_window": None}

    assert resolve_fully(load("llama"), config).unread == ()


def test_an_unread_key_is_a_warning_that_names_it() -> None:
    with pytest.warns(UnreadConfigKeys, match="llama.toml: config.json says shiny_new_thing"):
        resolve(load("llama"), {**LLAMA, "shiny_new_thing": 3})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("embedding_multiplier", 12.0),
        ("residual_multiplier", 0.22),
        ("logits_scaling", 8.0),
        ("query_pre_attn_scalar", 256),
        ("sliding_window", 4096),
        ("layer_types", ["sliding_attention", "full_attention"]),
        ("use_qk_norm", True),
        ("qk_layernorm", True),
        ("num_experts", 8),
        ("num_local_experts", 8),
        ("scale_depth", 1.4),
        ("layer_norm_eps", 1e-5),
        ("alibi", True),
        ("qkv_bias", True),
        ("clip_qkv", 8.0),
        ("rope_ratio", 50),
    ],
)
def test_an_unread_key_that_changes_the_mathematics_is_an_error(key: str, value: object) -> None:
    with pytest.raises(SpecError, match=key) as caught:
        resolve(load("llama"), {**LLAMA, key: value})

    assert "changes the mathematics" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("residual_multiplier", 1.0),
        ("alibi", False),
        ("num_experts", 0),
        ("use_qk_norm", False),
        ("rope_type", "default"),
    ],
)
def test_its_neutral_value_is_fine(key: str, value: object) -> None:
    assert resolve_fully(load("llama"), {**LLAMA, key: value}).unread == ()


def test_a_value_that_is_not_implemented_is_refused_by_name() -> None:
    with pytest.raises(
        SpecError, match=r"llama.toml: \[config.expect\] rope_interleaved"
    ) as caught:
        resolve(load("llama"), {**LLAMA, "rope_interleaved": True})

    assert "config.json says True; implemented is False" in str(caught.value)


def test_keys_of_a_table_that_is_read_by_parts_are_reported_one_by_one() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4}
    config = {
        **LLAMA,
        "rope_parameters": {"full_attention": rope, "sliding_attention": rope, "x": 1},
    }
    config |= {"sliding_window": 4, "query_pre_attn_scalar": 16, "hidden_act": "gelu"}

    with pytest.raises(SpecError, match=r"rope_parameters\.x"):
        resolve(load("gemma3"), config)


def test_no_key_is_both_inert_and_decisive() -> None:
    from fnmatch import fnmatchcase

    assert not [key for key in INERT for each in DECISIVE if fnmatchcase(key, each)]
