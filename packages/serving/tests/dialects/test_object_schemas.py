"""Schemas that allow an object as arguments, and others: the cases, written down."""

import pytest
from spaninfer_serving.dialects.object_schemas import MAX_DEPTH, allows_objects

TEXT, OBJECT = {"type": "string"}, {"type": "object"}


def nested(inner, levels):
    for _ in range(levels):
        inner = {"anyOf": [inner]}
    return inner


@pytest.mark.parametrize(
    "schema",
    [
        TEXT,
        {"type": ["string", "null"]},
        {"type": 5},
        {"enum": ["a", "b"]},
        {"const": 5},
        {"anyOf": [TEXT, {"type": "array"}]},
        {"oneOf": [TEXT, False]},
        {"allOf": [OBJECT, TEXT]},
        {**TEXT, "anyOf": [OBJECT]},
        {"$ref": "#/$defs/text", "$defs": {"text": TEXT}},
        {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "null"}], "$defs": {"text": TEXT}},
    ],
)
def test_a_schema_of_something_else_allows_none(schema):
    assert not allows_objects(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        OBJECT,
        {"type": ["object", "null"]},
        {"properties": {"a": TEXT}},
        {"enum": ["a", {"b": 1}]},
        {"anyOf": [TEXT, OBJECT]},
        {"anyOf": [TEXT, True]},
        {"$ref": "#/$defs/place", "$defs": {"place": OBJECT}},
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "#"},
        {"$ref": 5, "anyOf": {}, "allOf": 5},
    ],
)
def test_a_schema_that_may_be_an_object_allows_some(schema):
    assert allows_objects(schema)


def test_schemas_that_lead_in_circles_or_very_deep_are_read_no_further():
    count = 2_000
    chain = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(count)}

    assert allows_objects({"$ref": "#/$defs/d0", "$defs": {**chain, f"d{count}": TEXT}})
    assert not allows_objects(nested(TEXT, MAX_DEPTH - 1))
    assert allows_objects(nested(TEXT, 5 * MAX_DEPTH))
