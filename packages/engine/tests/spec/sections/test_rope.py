from __future__ import annotations

import math
from typing import Any

import pytest
from spaninfer_engine.errors import SpecError
from spaninfer_engine.spec import find, resolve
from spaninfer_engine.spec.attention_nodes import Attention, Rope
from spaninfer_engine.spec.frequencies import Frequencies

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
        ({"type": "linear", "factor": 0}, "factor: expected a number from 1e-06 to 1e+06, got 0"),
        ({"type": "yarn", "factor": -4.0}, "factor: expected a number from 1e-06 to 1e+06, got -4"),
        ({"type": "dynamic", "factor": 1e308}, "from 1e-06 to 1e+06, got 1e+308"),
        ({"type": "dynamic", "factor": math.nan}, "from 1e-06 to 1e+06, got nan"),
        ({"type": "yarn", "beta_fast": 0}, "beta_fast: expected a number from 1e-06 to 1e+06"),
        ({"type": "yarn", "beta_slow": -1}, "beta_slow: expected a number from 1e-06 to 1e+06"),
        ({"type": "yarn", "mscale": -10}, "mscale: expected a number from 0 to 1e+06, got -10"),
        ({"type": "yarn", "attention_factor": math.inf}, "attention_factor: expected a number"),
        (
            {"type": "yarn", "original_max_position_embeddings": 1e308},
            "original_max_position_embeddings: expected an integer from 1 to 2147483647",
        ),
        (
            {"type": "yarn", "factor": 1e6, "original_max_position_embeddings": 4096},
            "reaches 4,096,000,000 positions; at most 2,147,483,647 are told apart",
        ),
        (
            {"type": "llama3", "factor": 8, "low_freq_factor": 5, "high_freq_factor": 4},
            "'low_freq_factor' is 5; it may be the high one, 4, at most",
        ),
        ({"type": "llama3", "factor": 8, "low_freq_factor": -1}, "low_freq_factor: expected a"),
        (
            {"type": "longrope", **LONG, "original_max_position_embeddings": 1},
            "the original length is 1; its logarithm must be above 0",
        ),
        (
            {"type": "longrope", **LONG, "long_factor": [0.0] * 8},
            "long_factor: expected a number from 1e-06 to 1e+06, got 0.0",
        ),
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
    message = r"\[rope\] theta: .*from 1 to 1e\+30, got -1; config.json says rope_theta = -1$"
    with pytest.raises(SpecError, match=message):
        frequencies(rope_theta=-1)


def test_yarn_needs_a_theta_that_has_a_logarithm() -> None:
    with pytest.raises(SpecError, match=r"\[rope\] theta: .*it is 1; yarn needs more"):
        frequencies(rope_theta=1, rope_scaling={"type": "yarn", "factor": 2})


def test_a_base_that_grows_takes_more_than_one_pair_of_channels() -> None:
    table = {"type": "dynamic", "factor": 2.0}

    with pytest.raises(SpecError, match="theta cannot grow where 2 channels are rotated"):
        frequencies(**PHI3, rope_scaling=table, partial_rotary_factor=0.125)


@pytest.mark.parametrize("fraction", [1.5, 4, 16, 64, 1024, -1, 0, math.nan, 2**63])
def test_no_more_than_a_head_is_rotated(fraction: float) -> None:
    with pytest.raises(SpecError, match=f"partial_rotary_factor = {fraction}"):
        frequencies(**PHI3, partial_rotary_factor=fraction)


def test_an_odd_number_of_rotated_channels_is_refused() -> None:
    with pytest.raises(SpecError, match=r"rotates 5 of \d+ channels"):
        frequencies(**PHI3, partial_rotary_factor=0.35)
