from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from spaninfer_engine.errors import SpecError
from spaninfer_engine.spec import load
from spaninfer_engine.spec.scope import Scope

Make = Callable[[str, Mapping[str, Any]], Scope]


@pytest.fixture
def scope(tmp_path: Path) -> Make:
    """Returns the scope of a spec's text and a config."""

    def make(text: str, config: Mapping[str, Any]) -> Scope:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return Scope(load(path), config)

    return make


def test_names_of_let_come_before_dims_and_dims_before_config_keys(scope: Make) -> None:
    made = scope(
        '[let]\nhidden = 3\n[attn]\nscale = "=hidden"\nlogn = "=heads"\nsoftcap = "=own.key"',
        {"hidden_size": 64, "num_attention_heads": 4, "heads": 9, "own": {"key": 2}},
    )

    assert made.number("attn", "scale") == 3
    assert made.optional_integer("attn", "logn") == 4
    assert made.optional_number("attn", "softcap") == 2


def test_dims_may_refer_to_each_other_in_any_order(scope: Make) -> None:
    made = scope('[dims]\nffn = "=4*hidden"\nhidden = "=heads*head_dim"\nhead_dim = 16',
                 {"num_attention_heads": 4})  # fmt: skip

    assert made.integer("dims", "ffn") == 256


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        ('[attn]\nscale = "=hed_dim"', "scale", "did you mean head_dim?"),
        ('[attn]\nscale = "=unheard"', "scale", "no key of config.json"),
        ('[attn]\nscale = "$unheard"', "scale", "config.json has no unheard"),
        ('[attn]\nscale = "$word"', "scale", "expected a number, got 'text'"),
        ('[attn]\nscale = "=1/0"', "scale", "division by zero"),
        ('[attn]\nscale = "=i"', "scale", "differ by layer"),
        ('[let]\na = "=b"\nb = "=a"\n[attn]\nscale = "=a"', "b", "a -> b -> a does not end"),
        ('[let]\na = "$unheard"\n[attn]\nscale = "=a"', "a", "config.json has no unheard"),
        ('[dims]\nhidden = "$word"\n[attn]\nscale = "=hidden"', "hidden", "expected an integer"),
    ],
)
def test_an_error_shows_the_place_and_the_expression(
    scope: Make, text: str, key: str, problem: str
) -> None:
    made = scope(text, {"word": "text"})

    with pytest.raises(SpecError) as caught:
        made.number("attn", "scale")

    assert caught.value.source == "mine.toml"
    assert caught.value.key == key
    assert problem in caught.value.problem
    assert '"' in str(caught.value) or "'" in str(caught.value)


def test_an_error_in_a_default_still_shows_the_place(scope: Make) -> None:
    with pytest.raises(SpecError, match=r"\[norm\] eps: '\$rms_norm_eps': config\.json has no"):
        scope("", {}).number("norm", "eps")


def test_a_key_without_a_default_must_be_said(scope: Make) -> None:
    with pytest.raises(SpecError, match=r"\[moe\] n: mine.toml must say it: how many experts"):
        scope("", {}).integer("moe", "n")


def test_values_that_differ_by_layer_know_its_index(scope: Make) -> None:
    made = scope(
        "[attn]\nwindow_layers = \"=kinds[i] == 'local'\"", {"kinds": ["local", "global", "local"]}
    )

    assert [made.flag("attn", "window_layers", i) for i in range(3)] == [True, False, True]


def test_every_key_a_used_value_mentions_counts_as_read(scope: Make) -> None:
    made = scope(
        '[let]\nsize = "$wide|narrow"\n[attn]\nscale = "=1 if flag else size"\nlogn = "$other"',
        {"flag": True, "wide": 2},
    )

    made.number("attn", "scale")

    assert made.read == {"flag", "wide", "narrow"}


def test_a_config_key_with_the_name_of_a_dim_counts_as_read_where_a_chain_says_it(
    scope: Make,
) -> None:
    made = scope("", {"head_dim": 8, "hidden_size": 64, "num_attention_heads": 4})

    assert made.integer("dims", "head_dim") == 8
    assert made.read == {"head_dim", "hidden_size", "num_attention_heads"}
