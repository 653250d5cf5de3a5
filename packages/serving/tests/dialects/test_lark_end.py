"""Lark grammars that end at a closing mark, against re, as llguidance reads them."""

import json
import re

import pytest
from byte_grammars import Accepts
from spaninfer_serving.dialects.lark_end import ending_at

MARKS = ["\n</parameter>\n", "</param>"]

# A grammar, the same as a regex, texts of it, and others.
CASES = [
    ("start: /(?s:.*)/", "(?s:.*)", ["", "x", "a < b\n\nc", "x\n"], []),
    ('start: "say " TEXT?\nTEXT: /(.|\\n)+/', "say (?s:.*)", ["say ", "say a\n"], ["says"]),
    (
        'start: line ("\\n" line)*\n?line: NAME "=" /[^\\n]*/ // free\nNAME: /[a-z]+/',
        r"[a-z]+=[^\n]*(\n[a-z]+=[^\n]*)*",
        ["a=", "a=1\nb=x </p> y"],
        ["a", "a=\n"],
    ),
    (
        'start: sum\nsum: sum "+" NUMBER | NUMBER -> one\nNUMBER: /[0-9]+/',
        r"[0-9]+(\+[0-9]+)*",
        ["1", "12+3+4"],
        ["", "1+", "+1"],
    ),
    (
        'start: "(" [start] ")" | /[^()]+/ ("!" | "?")*',
        r"\(\)|\([^()]+[!?]*\)|[^()]+[!?]*",
        ["()", "(x)", "a\nb!?", "a </parameter> b"],
        ["(", ""],
    ),
    (
        'start: "say(" STRING ")"\nSTRING: /"[^"]*"/',
        r'say\("[^"]*"\)',
        ['say("a\nb")'],
        ['say("a)'],
    ),
    ('start: "x"~2..3 TEXT\nTEXT: /(?s:.*)/', "x{2,3}(?s:.*)", ["xx", "xxy"], ["x"]),
    (
        "start: NUMBER (OP NUMBER)*\nOP: /[<>]/\nNUMBER: /[0-9]+/",
        "[0-9]+([<>][0-9]+)*",
        ["1<2>3"],
        ["1<"],
    ),
    ("start: LINE+\nLINE: /.+\\n/", r"(.+\n)+", ["a\n", "a < b\nc\n"], ["a", "a\n\n"]),
    ("start: words\nwords: WORD{1,2}\nWORD: /[a-z]/", "[a-z]{1,2}", ["a", "ab"], ["", "abc"]),
    ("start: WORD{2}\nWORD: /[^;]*;/", "([^;]*;){2}", ["a;b;", ";<;"], ["", "a;", "a;b;c;"]),
    ("start: (/[a-z]+/ | /![^!]+!/){,2}", "([a-z]+|![^!]+!){0,2}", ["", "a", "a!<!"], ["!"]),
    ('start: "p" body\nbody[suffix=";"]: /(?s:.*)/', "p[^;]*;", ["p;", "p<\n;"], ["p", "q;"]),
    ('start: "p" %json {"type": "null"}', "pnull", ["pnull"], ["p"]),
]


@pytest.fixture(scope="module")
def accepts():
    """What says whether a grammar allows a text, and its end, as llguidance sees it."""
    return Accepts()


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize(("grammar", "regex", "right", "wrong"), CASES)
def test_a_sentence_and_the_mark_behind_it_are_all_there_is(
    grammar, regex, right, wrong, mark, accepts
):
    made = ending_at(grammar, mark) or f"start: %lark {{\n{grammar}\n}} {json.dumps(mark)}"
    for text in [*right, *wrong]:
        assert bool(re.fullmatch(regex, text)) == (text in right)

        assert accepts(made, text + mark) == (text in right), text
        assert not accepts(made, text), text


@pytest.mark.parametrize(
    "grammar",
    [
        "start: " + "(" * 10_000 + '"a"' + ")" * 10_000,
        "start: " + '"a"? ' * 10_000,
        "start: " + "(/a/? " * 40 + '"a"? ' * 5_000 + ")" * 40,
        "rule: start | %json {}\nstart: rule",
        'begin: "a"',
    ],
)
def test_a_grammar_that_is_not_read_or_would_grow_too_long_stays_as_it_is(grammar):
    assert ending_at(grammar, "</param>") is None


def test_rules_that_may_be_empty_through_many_others_are_found_once_each():
    rules = [f"r{at}: r{at + 1} r{at + 1}" for at in range(40)]
    grammar = "\n".join(["start: /x*/ r0", *rules, 'r40: "b"?'])

    made = ending_at(grammar, "</param>")

    assert made is not None
    assert "start__end: /x*/ r0__end | marked_0" in made
