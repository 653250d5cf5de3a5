import pytest
from spaninfer_engine.spec.language.syntax import BadValue
from spaninfer_engine.spec.language.typed import (
    COUNT,
    FLAG,
    INTEGERS,
    NAMES,
    NUMBER,
    SIZE,
    TABLE,
    TEXT,
    TEXTS,
    Type,
    choice,
    optional,
    side,
    size,
)

WORDS = choice("silu", "gelu", aliases={"swish": "silu"})


@pytest.mark.parametrize(
    ("type_", "given", "wanted"),
    [
        (SIZE, 4, 4),
        (SIZE, 4096.0, 4096),
        (SIZE, 1, 1),
        (COUNT, 0, 0),
        (size(2, 3), 3, 3),
        (side(20), 14, 14),
        (side(20), (14, 14), 14),
        (NUMBER, 1, 1.0),
        (FLAG, False, False),
        (TEXT, "a", "a"),
        (TEXTS, ("a", "b"), ("a", "b")),
        (NAMES, "a", ("a",)),
        (NAMES, ("a", ""), ("a", "")),
        (INTEGERS, (1, 2), (1, 2)),
        (TABLE, {"a": 1}, {"a": 1}),
        (optional(SIZE), None, None),
        (WORDS, "gelu", "gelu"),
        (WORDS, "swish", "silu"),
    ],
)
def test_a_fitting_value_passes(type_: Type, given: object, wanted: object) -> None:
    accepted = type_.accept(given)

    assert accepted == wanted
    assert type(accepted) is type(wanted)


@pytest.mark.parametrize(
    ("type_", "given"),
    [
        (SIZE, 1.5),
        (SIZE, True),
        (SIZE, "4"),
        (SIZE, None),
        (SIZE, float("inf")),
        (SIZE, 0),
        (SIZE, 2**41),
        (COUNT, -1),
        (size(2, 3), 4),
        (side(20), (14, 16)),
        (side(20), (14, 14, 14)),
        (side(20), (21, 21)),
        (NUMBER, "1"),
        (NUMBER, False),
        (NUMBER, float("nan")),
        (FLAG, 1),
        (TEXT, 1),
        (TEXTS, "a"),
        (TEXTS, (1,)),
        (NAMES, None),
        (INTEGERS, (1, "2")),
        (TABLE, ()),
        (optional(SIZE), "x"),
        (WORDS, "relu"),
        (WORDS, ("silu",)),
        (WORDS, None),
    ],
)
def test_another_value_is_refused_with_what_was_expected(type_: Type, given: object) -> None:
    with pytest.raises(BadValue, match="expected"):
        type_.accept(given)
