"""Indexers of sparse attention: which layers have one, and which specs are refused."""

from __future__ import annotations

from typing import Any

import pytest
from families import FAMILIES
from spaninfer_engine.errors import SpecError
from spaninfer_engine.spec import Decoder, find, resolve, weights
from spaninfer_engine.spec.attention_nodes import Indexer, MlaAttention, SharedIndexer
from spaninfer_engine.spec.nodes import CacheGroup


def decoder(name: str, **more: Any) -> Decoder:
    config = {**FAMILIES[name].config_json(), **more}
    return resolve(find(config), config)


def indexers(model: Decoder) -> list[Indexer | SharedIndexer | None]:
    found = []
    for layer in model.layers:
        assert isinstance(layer.attention, MlaAttention)
        found.append(layer.attention.indexer)
    return found


def test_an_indexer_has_the_names_of_published_files() -> None:
    model = decoder("deepseek_v32")

    first, *_ = indexers(model)

    assert isinstance(first, Indexer)
    assert (first.heads, first.dim, first.top_k, first.style) == (16, 16, 6, "half")
    named = {weight.name.removeprefix("model.layers.0.self_attn."): weight.shape
             for weight in weights(first)}  # fmt: skip
    assert named == {
        "indexer.wq_b.weight": (256, 32),
        "indexer.wk.weight": (16, 64),
        "indexer.k_norm.weight": (16,),
        "indexer.k_norm.bias": (16,),
        "indexer.weights_proj.weight": (16, 64),
    }
    assert (first.k_norm.kind, first.k_norm.eps) == ("layer", 1e-6)


def test_keys_of_indexers_are_a_cache_group_without_values() -> None:
    latents, index = decoder("deepseek_v32").groups

    assert index == CacheGroup(1, (0, 1, 2), 1, 16, 16, values_in_keys=True)
    assert index.is_index
    assert latents.layers == (0, 1, 2)
    assert not latents.is_index


def test_glm_rotates_neighbouring_channels_of_an_indexer() -> None:
    first, *_ = indexers(decoder("glm_moe_dsa"))

    assert isinstance(first, Indexer)
    assert first.style == "interleaved"


@pytest.mark.parametrize(
    "words",
    [
        {"index_topk_freq": 3, "index_skip_topk_offset": 2, "indexer_types": None},
        {"indexer_types": ["full", "full", "shared", "shared"]},
    ],
)
def test_layers_may_share_what_an_earlier_one_selects(words: dict[str, Any]) -> None:
    model = decoder("glm_moe_dsa shared", **words)

    kinds = [type(each) for each in indexers(model)]

    assert kinds == [Indexer, Indexer, SharedIndexer, SharedIndexer]
    assert model.groups[1].layers == (0, 1)


@pytest.mark.parametrize(
    ("name", "words", "problem"),
    [
        ("glm_moe_dsa shared", {"indexer_types": ["shared"] * 4}, "layer 0 has no indexer"),
        ("glm_moe_dsa", {"indexer_rope_interleave": False}, "implemented is True"),
        ("glm_moe_dsa", {"index_topk_pattern": "FSF"}, "index_topk_pattern"),
        ("deepseek_v32", {"index_topk": 0}, "index_topk"),
        ("deepseek_v32", {"index_head_dim": 4}, "8 of 4 channels of an indexer"),
        ("deepseek_v32", {"q_lora_rank": None}, "latent of queries"),
    ],
)
def test_what_no_indexer_can_be_is_refused(name: str, words: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        decoder(name, **words)
