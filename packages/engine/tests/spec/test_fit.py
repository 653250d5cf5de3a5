"""Consistency checks of trees: sizes that do not fit together are found."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from families import FAMILIES, Family, published
from media_models import HEARING, SIGHTS
from spaninfer_engine.spec import find, resolve
from spaninfer_engine.spec.attention_nodes import Heads, Rope
from spaninfer_engine.spec.fit import misfits
from spaninfer_engine.spec.mlp_nodes import Routing
from spaninfer_engine.spec.nodes import Decoder, Layer
from spaninfer_engine.spec.weight_nodes import Weight
from tile_models import TILED


def decoder(name: str) -> Decoder:
    config = published(FAMILIES[name].config_json())
    return resolve(find(config), config)


@pytest.mark.parametrize("name", FAMILIES)
def test_bundled_architectures_fit(name: str) -> None:
    assert list(misfits(decoder(name))) == []


@pytest.mark.parametrize(
    "name",
    ["llama with biases", "deepseek_v3", "deepseek_v32", "qwen3", "falcon 40b", "phi", "qwen2_moe"],
)
def test_any_weight_of_another_shape_is_found(name: str) -> None:
    whole = decoder(name)
    changed = list(_each_weight_changed(whole))

    assert len(changed) > 20
    for tree in changed:
        assert list(misfits(tree))


@pytest.mark.parametrize(
    "family",
    [*(each.family for each in (SIGHTS | TILED).values()), HEARING.family],
    ids=lambda family: family.model,
)
def test_any_weight_of_a_tower_of_another_shape_is_found(family: Family) -> None:
    config = family.config_json()
    whole: Any = resolve(find(config), config)
    changed = list(_each_weight_changed(whole.towers))

    assert list(misfits(whole)) == []
    assert len(changed) > 20
    for towers in changed:
        assert list(misfits(dataclasses.replace(whole, towers=towers)))


@pytest.mark.parametrize("dim", [-2, 0, 3, 18, 64, 1024])
def test_heads_are_rotated_within_their_size(dim: int) -> None:
    whole = decoder("llama")
    attention: Any = whole.layers[0].attention
    assert isinstance(attention.positions, Rope)
    rule = dataclasses.replace(attention.positions.frequencies, dim=dim)
    rope = dataclasses.replace(attention.positions, frequencies=rule)

    found = list(misfits(_with_attention(whole, positions=rope)))

    assert found == [f"{dim} of 16 channels of a head are rotated"]


@pytest.mark.parametrize(
    "changed",
    [
        *({"window": 0}, {"window": 5}, {"group": 7}, {"logn_base": 1}),
        *({"heads": Heads(4, 3, 16)}, {"heads": Heads(4, 0, 16)}),
    ],
)
def test_windows_groups_and_heads_are_those_that_are_kept(changed: dict[str, Any]) -> None:
    assert list(misfits(_with_attention(decoder("llama"), **changed)))


@pytest.mark.parametrize("changed", [{"top_k": 0}, {"top_k": 5}, {"groups": 3}, {"groups": 0},
                                     {"group_topk": 5}, {"groups": 8}])  # fmt: skip
def test_experts_can_be_chosen(changed: dict[str, Any]) -> None:
    whole = decoder("deepseek_v3")  # 3 of 8 experts, within 2 of 4 groups, by their best two
    layer = whole.layers[-1]
    mlp: Any = layer.mlp
    assert isinstance(mlp.routing, Routing)
    routing = dataclasses.replace(mlp.routing, **changed)
    routed = dataclasses.replace(layer, mlp=dataclasses.replace(mlp, routing=routing))

    assert list(misfits(_with_layer(whole, routed)))


def test_positions_are_looked_up_within_their_table() -> None:
    whole = decoder("opt 350m")

    found = list(misfits(dataclasses.replace(whole, max_len=whole.max_len + 1)))

    assert found == ["model.decoder.embed_positions.weight has 258 rows; 257 positions from row 2 "
                     "on are read"]  # fmt: skip


def _with_attention(whole: Decoder, **changed: Any) -> Decoder:
    layer = whole.layers[-1]
    attention: Any = layer.attention
    return _with_layer(
        whole, dataclasses.replace(layer, attention=dataclasses.replace(attention, **changed))
    )


def _with_layer(whole: Decoder, layer: Layer) -> Decoder:
    return dataclasses.replace(whole, layers=(*whole.layers[:-1], layer))


def _each_weight_changed(node: Any) -> Any:
    """Yield the tree once per weight and axis, which has one more there; of a tied head none."""
    if isinstance(node, Weight):
        for axis, size in enumerate(node.shape):
            shape = (*node.shape[:axis], size + 1, *node.shape[axis + 1 :])
            yield dataclasses.replace(node, shape=shape)
    elif isinstance(node, tuple):
        for at, item in enumerate(node):
            for changed in _each_weight_changed(item):
                yield (*node[:at], changed, *node[at + 1 :])
    elif dataclasses.is_dataclass(node):
        for field in dataclasses.fields(node):
            for changed in _each_weight_changed(getattr(node, field.name)):
                yield dataclasses.replace(node, **{field.name: changed})  # type: ignore[type-var]
