"""Defaults of missing config.json keys, against the config classes of transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, Family, published
from oracle import TOLERANCE, Oracle, deviation, prompt
from spaninfer_engine.errors import SpecError
from spaninfer_engine.spec import Decoder, UnreadConfigKeys, find, load, resolve
from spaninfer_engine.spec.account import INERT
from spaninfer_engine.spec.language.values import mentions
from spaninfer_engine.spec.registry import library
from stepping import Model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SIZES = {  # no model is of the default's size by chance: they must be said
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "n_head", "n_layer", "ffn_dim", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim", "moe_intermediate_size", "shared_expert_intermediate_size", "num_experts",
    "num_local_experts", "intermediate_size_mlp", "n_routed_experts", "n_shared_experts",
    "num_experts_per_tok",
}  # fmt: skip
MUST_BE_SAID = SIZES | {
    "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "hidden_act", "activation_function",
}  # fmt: skip
NO_FRACTION = [
    name
    for name in FAMILIES
    if not name.startswith(
        ("phi", "glm", "stablelm", "bloom", "opt", "minimax", "qwen3_next", "qwen3_5")
    )
]


@pytest.mark.parametrize("spelling", ["of transformers 5", "of published files"])
@pytest.mark.parametrize("name", FAMILIES)
def test_an_absent_key_means_what_it_means_in_transformers(name: str, spelling: str) -> None:
    family = FAMILIES[name]
    config = family.config_json()
    if spelling == "of published files":
        config = published(config)

    differ = [
        key for key in sorted(config.keys() - INERT) if not _means_the_same(family, config, key)
    ]

    assert not differ


def _means_the_same(family: Family, config: Mapping[str, Any], key: str) -> bool:
    """Is the config without a key refused by its name, or the model that transformers makes?"""
    less = {each: value for each, value in config.items() if each != key}
    try:
        actual = _decoder(less)
    except SpecError as refused:
        whole = _completed(family, less)
        return key in str(refused) and (key in MUST_BE_SAID or whole is None or _is_refused(whole))
    return actual == _decoder(_completed(family, less) or {})


def _completed(family: Family, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a config with every default that its class in transformers adds; None if refused."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    try:
        made = getattr(transformers, family.config).from_dict(deepcopy(dict(config)))
    except Exception:  # each of its validators has an error of its own
        return None
    return {**json.loads(made.to_json_string(use_diff=False)), "architectures": [family.model]}


def _is_refused(config: Mapping[str, Any]) -> bool:
    try:
        _decoder(config)
    except SpecError:
        return True
    return False


def _decoder(config: Mapping[str, Any]) -> Decoder:
    return resolve(find(config), config)


@pytest.mark.parametrize(
    ("name", "key", "more"),
    [
        ("phi", "partial_rotary_factor", {"rope_parameters": None}),
        ("glm", "partial_rotary_factor", {"rope_parameters": None}),
        ("stablelm", "partial_rotary_factor",
         {"rope_parameters": None, "num_key_value_heads": 4}),
        ("mixtral", "rope_theta", {"rope_parameters": None}),
        ("gemma2", "query_pre_attn_scalar", {}),
        ("gemma2", "attn_logit_softcapping", {}),
        ("gemma2", "final_logit_softcapping", {}),
        ("gemma3", "query_pre_attn_scalar", {}),
        ("qwen2 windows", "max_window_layers", {}),
        ("qwen3", "head_dim", {}),
        ("gemma", "head_dim", {}),
        ("glm", "head_dim", {}),
        ("glm", "attention_bias", {}),
        ("mixtral", "num_key_value_heads", {"num_attention_heads": 16}),
        ("qwen3_moe", "num_key_value_heads", {"num_attention_heads": 8}),
        ("deepseek_v3", "routed_scaling_factor", {}),
        ("deepseek_v3", "norm_topk_prob", {}),
        ("minicpm3", "scale_depth", {}),
    ],
)  # fmt: skip
def test_a_model_whose_config_lacks_a_key_gives_logits_of_transformers(
    name: str, key: str, more: Mapping[str, Any], tmp_path: Path
) -> None:
    family = FAMILIES[name]
    arguments = {**family.arguments, **more}
    arguments.pop(key, None)
    arguments = {each: value for each, value in arguments.items() if value is not None}
    oracle = Oracle(replace(family, arguments=arguments), seed=3)
    _save(oracle, tmp_path, without=(key,))

    assert _deviation(oracle, tmp_path) < TOLERANCE


@pytest.mark.parametrize("without", [(), ("topk_method",)])
def test_groups_of_experts_count_only_where_the_method_looks_at_them(
    without: tuple[str, ...], tmp_path: Path
) -> None:
    family = FAMILIES["deepseek_v2"]
    arguments = {**family.arguments, "topk_method": "greedy"}
    oracle = Oracle(replace(family, arguments=arguments), seed=3)
    _save(oracle, tmp_path, without)

    assert _deviation(oracle, tmp_path) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "dense"),
    [
        ("qwen3_moe", {"mlp_only_layers": [0, 1, 2]}),
        ("qwen3_moe", {"decoder_sparse_step": 4}),
        ("qwen3_moe", {"num_experts": 0}),
        ("qwen2_moe", {"mlp_only_layers": [0, 1, 2]}),
        ("deepseek_v2", {"first_k_dense_replace": 3}),
        ("deepseek_v3", {"first_k_dense_replace": 3}),
    ],
)
def test_experts_that_no_layer_has_keep_no_model_from_loading(
    name: str, dense: Mapping[str, Any], tmp_path: Path
) -> None:
    family = FAMILIES[name]
    oracle = Oracle(replace(family, arguments={**family.arguments, **dense}), seed=3)
    _save(oracle, tmp_path)

    assert _deviation(oracle, tmp_path) < TOLERANCE


@pytest.mark.parametrize("kind", ["yarn", "llama3"])
def test_the_original_length_beside_the_rope_table_wins_over_the_one_in_it(
    kind: str, tmp_path: Path
) -> None:
    table = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0,
             "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
    if kind == "yarn":
        del table["low_freq_factor"], table["high_freq_factor"]
    family = FAMILIES["llama"]
    beside = {"original_max_position_embeddings": 16}
    arguments = {**family.arguments, **beside, "rope_parameters": dict(table)}
    oracle = Oracle(replace(family, arguments=arguments), seed=3)
    _save(oracle, tmp_path, without=("rope_scaling",), **beside, rope_parameters=table)

    assert _deviation(oracle, tmp_path) < TOLERANCE


@pytest.mark.parametrize("place", ["beside the table", "rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2"])
def test_a_rotated_part_that_the_model_does_not_know_is_reported_and_not_used(
    name: str, place: str, tmp_path: Path
) -> None:
    oracle = Oracle(FAMILIES[name], seed=3)
    part = {"partial_rotary_factor": 0.5}
    rope = {"rope_type": "default", "rope_theta": 1e4}
    more = part if place == "beside the table" else {place: {**rope, **part}}
    _save(oracle, tmp_path, **more)

    with pytest.warns(UnreadConfigKeys, match="partial_rotary_factor, which nothing reads"):
        found = _deviation(oracle, tmp_path)

    assert found < TOLERANCE


@pytest.mark.parametrize("name", NO_FRACTION)
def test_no_other_family_rotates_a_part_of_a_head(name: str) -> None:
    config = published(FAMILIES[name].config_json())
    expected = _decoder(config)

    with pytest.warns(UnreadConfigKeys, match="partial_rotary_factor"):
        assert _decoder({**config, "partial_rotary_factor": 0.5}) == expected


def test_a_family_that_may_rotate_a_part_does_not_have_it_ignored() -> None:
    config = FAMILIES["granite"].config_json()
    spec = replace(load("granite"), entries={
        place: entry for place, entry in load("granite").entries.items()
        if place != ("config", "unused")
    })  # fmt: skip

    with pytest.raises(SpecError, match=r"partial_rotary_factor: .*changes the mathematics"):
        resolve(spec, {**config, "partial_rotary_factor": 0.5})


@pytest.mark.parametrize("name", library())
def test_every_default_of_a_key_is_read(name: str) -> None:
    spec = load(name)

    read = {
        node.path
        for section, key in {*spec.entries, *_vocabulary()}
        if (tree := spec.entry(section, key).tree) is not None
        for node in mentions(tree)
    }

    own = {key for key, entry in spec.said("config.default").items() if entry.source == spec.source}
    assert own <= read


def _vocabulary() -> set[tuple[str, str]]:
    from spaninfer_engine.spec.vocabulary import SECTIONS

    return {(name, key) for name, section in SECTIONS.items() for key in section.keys}


def test_a_default_that_does_not_fit_is_named() -> None:
    config = published(FAMILIES["mixtral"].config_json())
    del config["num_key_value_heads"]

    with pytest.raises(SpecError, match=r"no num_key_value_heads, which means 8 in mistral\.toml"):
        _decoder(config)


def _save(oracle: Oracle, folder: Path, without: tuple[str, ...] = (), **more: Any) -> None:
    """Save a model whose config.json is as published files are, less some keys, and more."""
    oracle.save(folder)
    config = published(json.loads((folder / "config.json").read_text()))
    config = {key: value for key, value in config.items() if key not in without} | more
    (folder / "config.json").write_text(json.dumps(config))


def _deviation(oracle: Oracle, folder: Path) -> float:
    """Return by how much our logits differ from those of transformers."""
    runner = Model(folder).on("cpu")
    runner.prefill(1, prompt(40), chunk=16)
    return deviation(runner.logits(1), oracle.logits(prompt(40)))
