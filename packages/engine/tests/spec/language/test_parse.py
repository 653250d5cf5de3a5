import pytest
from spaninfer_engine.spec.language.parse import MAX_DEPTH, MAX_TEXT, parse
from spaninfer_engine.spec.language.syntax import (
    BadValue,
    Binary,
    Chain,
    Condition,
    Constant,
    Guarded,
    Items,
    Key,
    Name,
    Subscript,
    Unary,
)


def test_a_chain_holds_keys_guards_expressions_and_literals_in_order() -> None:
    tree = parse("$a|b.c|flag?d|=x+1|'lit'|-7|null")

    assert tree == Chain(
        (
            Key("a"),
            Key("b.c"),
            Guarded("flag", Key("d")),
            Binary("+", Name("x"), Constant(1)),
            Constant("lit"),
            Unary("-", Constant(7)),
            Constant(None),
        )
    )


def test_guards_nest_and_a_bar_in_quotes_does_not_separate() -> None:
    assert parse("$a?b?'x|y'") == Chain((Guarded("a", Guarded("b", Constant("x|y"))),))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("1 + 2 * 3", Binary("+", Constant(1), Binary("*", Constant(2), Constant(3)))),
        ("2 - 3 - 4", Binary("-", Binary("-", Constant(2), Constant(3)), Constant(4))),
        ("(1 + 2) * 3", Binary("*", Binary("+", Constant(1), Constant(2)), Constant(3))),
        ("-2 ** 2", Unary("-", Binary("**", Constant(2), Constant(2)))),
        ("d**-0.5", Binary("**", Name("d"), Unary("-", Constant(0.5)))),
        ("2 ** 3 ** 2", Binary("**", Constant(2), Binary("**", Constant(3), Constant(2)))),
        ("a // b % 2", Binary("%", Binary("//", Name("a"), Name("b")), Constant(2))),
        ("not a == b", Unary("not", Binary("==", Name("a"), Name("b")))),
        ("i not in x", Unary("not", Binary("in", Name("i"), Name("x")))),
        ("a or b and c", Binary("or", Name("a"), Binary("and", Name("b"), Name("c")))),
        ("x[i] == 'y'", Binary("==", Subscript(Name("x"), Name("i")), Constant("y"))),
        ("[1, 'a', []]", Items((Constant(1), Constant("a"), Items(())))),
        ("1 if a else 2 if b else 3",
         Condition(Name("a"), Constant(1), Condition(Name("b"), Constant(2), Constant(3)))),
        ("a.b", Name("a.b")),
        ("1e-5", Constant(1e-5)),
        ("'if'", Constant("if")),
    ],
)  # fmt: skip
def test_operators_bind_as_in_arithmetic(text: str, tree: object) -> None:
    assert parse(f"={text}") == tree


@pytest.mark.parametrize(
    "text",
    [
        "=", "=1 +", "=1 2", "=(1", "=[1", "=[1 2]", "=a b", "=a if b", "=if", "=a < b < c",
        "=f(1)", "=a.b()", "=a[0", "=x = 1", "='open", "=1;2", "=a; b", "=__import__('os')",
        "=a.__class__()", "=`ls`", "=0x10", "=a @ b", "=a | b", "=not", "=**2",
        "$", "$a||b", "$a|", "$a?", "$a b", "$1a", "$a|f(1)", "$a+b", "$a|not b", "$a|-b", "$'open",
    ],
)  # fmt: skip
def test_what_is_no_value_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse(text)


def test_a_name_with_a_word_of_the_language_in_it_is_a_name() -> None:
    assert parse("=order + notes") == Binary("+", Name("order"), Name("notes"))


@pytest.mark.parametrize("opening", ["(", "[", "-", "not ", "a[", "1 if 1 else "])
def test_nesting_is_limited(opening: str) -> None:
    with pytest.raises(BadValue, match="nested more than"):
        parse("=" + opening * (MAX_DEPTH + 1) + "1")


def test_length_is_limited() -> None:
    with pytest.raises(BadValue, match="longer than"):
        parse("=" + "1+" * MAX_TEXT + "1")
