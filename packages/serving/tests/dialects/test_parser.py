"""Recorded answers of every dialect, whole and cut at every place."""

import random

import pytest
from recorded_answers import RECORDED, form_of, read, said, without_ids
from spaninfer_serving.dialects.events import assembled
from spaninfer_serving.dialects.parser import AnswerFormat
from spaninfer_serving.dialects.table import DIALECTS
from spaninfer_serving.dialects.tagged_calls import kinds_of

EVERY_ANSWER = pytest.mark.parametrize("recorded", RECORDED.values(), ids=RECORDED)


@EVERY_ANSWER
def test_an_answer_says_what_its_dialect_means(recorded):
    events = read(form_of(recorded), [recorded.text])

    expected = (recorded.content, recorded.reasoning, list(recorded.calls), [])
    assert said(events) == expected
    if recorded.ids:
        assert tuple(call.id for call in assembled(events).calls) == recorded.ids


@EVERY_ANSWER
def test_where_an_answer_is_cut_does_not_matter(recorded):
    form, text = form_of(recorded), recorded.text
    whole = without_ids(read(form, [text]))

    for cut in range(1, len(text)):
        assert without_ids(read(form, [text[:cut], text[cut:]])) == whole, (text[:cut], text[cut:])
    assert without_ids(read(form, list(text))) == whole


@EVERY_ANSWER
def test_random_pieces_say_the_same(recorded):
    form, text, chance = form_of(recorded), recorded.text, random.Random(recorded.text)
    whole = without_ids(read(form, [text]))

    for _ in range(20):
        cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randrange(1, 12)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert without_ids(read(form, pieces)) == whole, pieces


def test_every_dialect_is_recorded():
    assert {each.dialect for each in RECORDED.values()} - {None} == set(DIALECTS)


LOOP = {"$ref": "#/$defs/loop"}


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"enum": ["a", 1]}, set()),
        ({"$ref": "#/$defs/place"}, {"object"}),
        ({"allOf": [{"$ref": "#/$defs/place"}]}, {"object"}),
        ({"$ref": "#/$defs/nowhere/else"}, set()),
        (LOOP, set()),
        ({}, set()),
        (True, set()),
        ({"type": 5, "enum": 5, "anyOf": 5, "$ref": 5}, set()),
        ({"type": [5, {}, "string"], "enum": {}, "oneOf": {"type": "null"}}, {"string", "null"}),
    ],
)
def test_a_schema_says_which_types_a_value_may_have(schema, kinds):
    root = {"$defs": {"place": {"type": "object"}, "loop": {"anyOf": [LOOP] * 1000}}}

    assert kinds_of(schema, root) == kinds


@pytest.mark.parametrize("schema", [{}, {"properties": 5}, {"properties": {"a": 5}}, {"type": 5}])
def test_a_schema_that_is_none_says_nothing(schema):
    form = AnswerFormat.of(DIALECTS["qwen3_coder"], None, {"f": schema})

    events = read(form, ["<function=f><parameter=a>5</parameter></function>"])

    assert said(events)[2] == [("f", {"a": "5"})]
