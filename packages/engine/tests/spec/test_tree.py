from __future__ import annotations

import json
from pathlib import Path

import pytest
from spaninfer_engine.program.lower import lower
from spaninfer_engine.program.program import gathered_early, without_media
from spaninfer_engine.spec import Decoder, find, resolve
from spaninfer_engine.spec.nodes import Head, ropes
from spaninfer_engine.spec.tree import parameter_count, shortened, weights
from spaninfer_engine.spec.weight_nodes import Linear, Weight

ARCHITECTURES = Path(__file__).parents[1] / "architectures"
PUBLISHED = json.loads((ARCHITECTURES / "published.json").read_text())

TABLE = Weight("embed.weight", (10, 4), 0)


def test_a_tied_head_counts_its_bias_but_not_the_table() -> None:
    bias = Weight("head.bias", (10,), 0)

    assert list(weights(Head(Linear(TABLE, bias), tied=True))) == [bias]
    assert list(weights(Head(Linear(TABLE, bias)))) == [TABLE, bias]
    assert parameter_count(Head(Linear(TABLE, bias))) == 50


@pytest.mark.parametrize("row", PUBLISHED)
def test_a_shortened_model_computes_all_that_the_whole_one_does(row: str) -> None:
    decoder = resolve(find(PUBLISHED[row]["config"]), PUBLISHED[row]["config"])

    short = shortened(decoder)

    assert short.layers == decoder.layers[: len(short.layers)]
    assert ropes(short) == ropes(decoder)
    assert kinds_of_operations(short) == kinds_of_operations(decoder)


@pytest.mark.parametrize(
    ("row", "layers"),
    [("Qwen2.5-7B", 2), ("DeepSeek-V3", 5), ("gemma-3-1b", 7), ("Mixtral-8x7B", 2)],
)
def test_of_equal_layers_a_shortened_model_has_one_and_it_has_one_more_at_the_end(
    row: str, layers: int
) -> None:
    decoder = resolve(find(PUBLISHED[row]["config"]), PUBLISHED[row]["config"])

    assert len(shortened(decoder).layers) == layers


def kinds_of_operations(decoder: Decoder) -> set[object]:
    """What a model's operations are but for names and the numbers of layers.

    And whether they compute all rows of a step, or only those whose logits are wanted.
    """
    kinds: set[object] = set()
    wanted: set[str] = set()
    for each in gathered_early(without_media(lower(decoder))).operations:
        is_narrow = each.operator == "gather_rows" or not wanted.isdisjoint(each.inputs)
        wanted.update(each.outputs if is_narrow else ())
        constants = tuple((name, value) for name, value in each.constants if name != "layer")
        shapes = tuple((use.argument, tuple(w.shape for w in use.tensors)) for use in each.weights)
        kinds.add((is_narrow, each.operator, constants, shapes))
    return kinds
