from __future__ import annotations

from typing import Any

import pytest
from spaninfer_engine.errors import SpecError
from spaninfer_engine.spec import find, resolve
from spaninfer_engine.spec.frequencies import Frequencies
from spaninfer_engine.spec.nodes import Attention, Rope

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}
PLAIN = Frequencies("default", dim=16, theta=1e4, max_len=4096, original_len=4096)
LONG = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def rope(**more: Any) -> Rope:
    config = {**CONFIG, **more}
    attention = resolve(find(config), config).layers[0].attention
    assert isinstance(attention, Attention)
    assert isinstance(attention.positions, Rope)
    return attention.positions


def frequencies(**more: Any) -> Frequencies:
    return rope(**more).frequencies


def test_without_a_word_frequencies_are_plain() -> None:
    assert rope() == Rope("half", PLAIN)


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_both_spellings_of_a_table_are_read(spelling: str) -> None:
    table = {"rope_type": "linear", "factor": 4}

    assert frequencies(**{spelling: table}) == Frequencies(
        "linear", 16, 1e4, 4096, 4096, factor=4.0
    )


def test_the_old_word_for_the_type_and_the_theta_inside_of_the_table_are_read() -> None:
    old = frequencies(rope_scaling={"type": "dynamic", "factor": 2.0}, rope_theta=5e5)
    new = frequencies(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 5e5})

    assert old == new == Frequencies("dynamic", 16, 5e5, 4096, 4096, factor=2.0)


def test_llama3_reads_its_bands() -> None:
    table = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
             "high_freq_factor": 4.0, "original_max_position_embeddings": 512}  # fmt: skip

    found = frequencies(rope_scaling=table)

    assert found == Frequencies(
        "llama3", 16, 1e4, 4096, 512, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0
    )


def test_yarn_reads_every_field_and_defaults_the_rest() -> None:
    full = {"type": "yarn", "factor": 40, "beta_fast": 16, "beta_slow": 2, "mscale": 0.7,
            "mscale_all_dim": 0.8, "truncate": False, "attention_factor": 1.5,
            "original_max_position_embeddings": 1024}  # fmt: skip

    assert frequencies(rope_scaling=full) == Frequencies(
        "yarn", 16, 1e4, 4096, 1024, factor=40.0, beta_fast=16.0, beta_slow=2.0, mscale=0.7,
        mscale_all_dim=0.8, truncate=False, attention_factor=1.5,
    )  # fmt: skip
    short = {"type": "yarn", "original_max_position_embeddings": 1024}
    assert frequencies(rope_scaling=short) == Frequencies("yarn", 16, 1e4, 4096, 1024, factor=4.0)


def test_yarn_may_reach_further_than_max_position_embeddings() -> None:
    config = {**CONFIG, "rope_scaling": {"type": "yarn", "factor": 4.0}}

    decoder = resolve(find(config), config)

    assert decoder.max_len == 16384


def test_dynamic_frequencies_begin_to_act_where_max_position_embeddings_ends() -> None:
    config = {**CONFIG, "rope_scaling": {"type": "dynamic", "factor": 4.0}}

    decoder = resolve(find(config), config)

    assert decoder.max_len == 4 * 4096


@pytest.mark.parametrize("word", ["longrope", "su"])
def test_longrope_takes_its_original_length_from_beside_the_table(word: str) -> None:
    found = frequencies(rope_scaling={"type": word, **LONG}, original_max_position_embeddings=1024)

    assert found == Frequencies(
        "longrope", 16, 1e4, 4096, 1024, factor=4.0,
        short_factors=(1.0,) * 8, long_factors=(2.0,) * 8,
    )  # fmt: skip


def test_only_phi3_recomputes_its_keys_behind_the_original_length() -> None:
    table = {"type": "longrope", **LONG, "original_max_position_embeddings": 1024}

    assert frequencies(rope_scaling=table, architectures=["Phi3ForCausalLM"]).recompute
    assert not frequencies(rope_scaling=table).recompute


PHI3 = {"architectures": ["Phi3ForCausalLM"]}


def test_a_fraction_of_a_head_is_rotated() -> None:
    inside = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}

    assert frequencies(**PHI3, partial_rotary_factor=0.5).dim == 8
    assert frequencies(**PHI3, rope_parameters=inside).dim == 4
    assert frequencies(**PHI3, rope_scaling=inside).dim == 4


def test_the_theta_in_a_table_of_the_older_name_is_read() -> None:
    assert frequencies(rope_scaling={"type": "linear", "factor": 2, "rope_theta": 5e5}).theta == 5e5


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"type": "spiral"}, "the rope type 'spiral' is not built; built are default"),
        ({"type": "linear"}, "rope type 'linear' needs 'factor'"),
        ({"type": "linear", "factor": "4"}, "factor: expected a number, got '4'"),
        ({"type": "linear", "factor": 0}, "'factor' is 0; it must lie above 0, to 1,048,576"),
        ({"type": "yarn", "factor": -4.0}, "'factor' is -4; it must lie above 0"),
        ({"type": "dynamic", "factor": 1e308}, "'factor' is 1e+308; it must lie above 0"),
        ({"type": "llama3", "factor": 8.0}, "needs 'low_freq_factor'"),
        ({"type": "linear", "factor": 2, "twist": 3}, "has no 'twist' here"),
        ({"type": "longrope", "short_factor": [1.0]}, "'short_factor' must be a list of 8 numbers"),
        ({"type": "yarn", "truncate": 1}, "truncate: expected true or false"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(table: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError, match=r"\[rope\] scaling") as caught:
        frequencies(rope_scaling=table)

    assert problem in str(caught.value)


def test_a_theta_that_gives_no_frequencies_is_refused() -> None:
    with pytest.raises(SpecError, match=r"\[rope\] theta: .*it is -1; it must lie above 0"):
        frequencies(rope_theta=-1)


def test_an_odd_number_of_rotated_channels_is_refused() -> None:
    with pytest.raises(SpecError, match="rotates 5 channels"):
        frequencies(**PHI3, partial_rotary_factor=0.35)
