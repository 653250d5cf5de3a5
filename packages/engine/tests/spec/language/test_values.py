from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from spaninfer_engine.spec.language.parse import parse
from spaninfer_engine.spec.language.syntax import BadValue, Key, Name
from spaninfer_engine.spec.language.values import evaluate, mentions


@dataclass
class Known:
    """Names of expressions and keys of a config, as tests need them."""

    names: Mapping[str, object] = field(default_factory=dict)
    keys: Mapping[str, object] = field(default_factory=dict)

    def name(self, path: str) -> object:
        return self.names[path]

    def key(self, path: str) -> object:
        return self.keys.get(path)


def value(text: str, known: Known | None = None) -> object:
    return evaluate(parse(text), known or Known())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("7 // 2", 3), ("7 / 2", 3.5), ("7 % 4", 3), ("2 ** 10", 1024), ("16 ** -0.5", 0.25),
        ("-2 ** 2", -4), ("2 - 3 - 4", -5), ("1 + 2 * 3", 7), ("10000.0 * 50", 500000.0),
        ("3 == 3.0", True), ("'a' == 'a'", True), ("1 != 2", True), ("2 <= 2", True),
        ("1 > 2", False), ("3 in [1, 2, 3]", True), ("'x' not in ['y']", True),
        ("not true", False), ("true and 0", False), ("null or 1", True), ("[5, 6][1]", 6),
        ("1 if [] else 2", 2), ("'a' if 1 < 2 else 'b'", "a"), ("null", None),
    ],
)  # fmt: skip
def test_expressions_have_the_value_of_arithmetic(text: str, wanted: object) -> None:
    result = value(f"={text}")

    assert result == wanted
    assert type(result) is type(wanted)


def test_a_chain_takes_the_first_key_that_is_present_and_not_null() -> None:
    known = Known(keys={"a": None, "c": 0})

    assert value("$a|b|c|7", known) == 0


def test_a_guarded_alternative_counts_only_where_the_flag_is_true() -> None:
    chain = "$flag?size|'none'"

    assert value(chain, Known(keys={"flag": True, "size": 5})) == 5
    assert value(chain, Known(keys={"flag": False, "size": 5})) == "none"
    assert value(chain, Known(keys={"flag": True})) == "none"
    assert value(chain, Known()) == "none"


def test_null_as_an_alternative_ends_the_chain() -> None:
    assert value("$a|null|7") is None


def test_an_exhausted_chain_names_the_keys_it_looked_for() -> None:
    with pytest.raises(BadValue, match=r"config\.json has no n_embd and no hidden_size"):
        value("$n_embd|hidden_size")


def test_the_branch_that_is_not_taken_is_not_computed() -> None:
    assert value("=1 if true else missing") == 1
    assert value("=false and missing") is False
    assert value("=true or missing") is True


@pytest.mark.parametrize(
    "text",
    [
        "9 ** 9 ** 9", "10 ** 39", "2 ** 127 * 4", "10.0 ** 400", "1 // 0", "1 % 0", "1 / 0",
        "(-8) ** 0.5", "0 ** -1",
    ],
)  # fmt: skip
def test_bombs_and_impossible_arithmetic_are_refused(text: str) -> None:
    with pytest.raises(BadValue):
        value(f"={text}")


@pytest.mark.parametrize(
    "text",
    [
        "'a' + 'b'", "[0] * 9", "true + 1", "null * 2", "'a' < 'b'", "-'a'", "1 in 5", "'a' in 'b'",
        "[1][true]", "[1][1]", "[1][-1]", "5[0]",
    ],
)  # fmt: skip
def test_operators_refuse_what_they_are_not_for(text: str) -> None:
    with pytest.raises(BadValue):
        value(f"={text}")


def test_everything_a_value_mentions_is_found_also_where_it_is_not_needed() -> None:
    tree = parse("$a|f?b.c|=x[i] + (1 if not y else -z)|[q]")

    assert list(mentions(tree)) == [
        Key("a"), Key("f"), Key("b.c"), Name("x"), Name("i"), Name("y"), Name("z"), Name("q"),
    ]  # fmt: skip
