import pytest
from spaninfer_engine.grammar.schema import (
    MAX_DEPTH,
    MAX_PROPERTIES,
    explain,
    refuse_large,
    written,
)

A = {"properties": {"not": {"type": "string"}, "a b": {"items": [{}, {"not": {}}]}}}


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "error", "expected"),
    [
        # a property that is called like a keyword is none
        (
            A,
            'Unimplemented keys: ["not"]',
            "the keyword 'not' at $.properties[\"a b\"].items[1].not",
        ),
        ({"$defs": {"x": {"if": 1}}}, 'Unimplemented keys: ["else", "if"]', "'if' at $.$defs.x.if"),
        ({}, 'Unimplemented keys: ["else"]', "the keyword 'else' is not supported"),
        ({"anyOf": [{"format": "a"}, {"format": "b"}]}, "Unknown format: b", "$.anyOf[1].format: "),
        ({"allOf": [{"type": "x"}]}, "Invalid type: x", "$.allOf[0].type: "),
        ({"not": {"$ref": "#/y"}}, "Pointer '/y' does not exist", "$.not.$ref: "),
        ({"pattern": "("}, "regex parse error:\n    (\n    ^", "$.pattern: "),
        ({"items": {"oneOf": []}}, "oneOf constraints are not", "$.items.oneOf: "),
        ({"a": 1}, "Expected x for 'minLength', got 1", "Expected x for 'minLength'"),
        (None, 'at 1(8): invalid regex "a" (in regex): b\n   1 | start: /a', "b"),
        (None, "c\n<non-verbose/>", "c"),
    ],
)
def test_an_error_names_the_keyword_and_its_place(schema, error, expected):
    assert expected in explain(schema, error)
    assert "start: /" not in explain(schema, error)


def test_paths_are_written_as_json_paths():
    assert written(()) == "$"
    assert written(("a", 3, 'x"y', "$defs")) == '$.a[3]["x\\"y"].$defs'


def test_schemas_that_are_deep_or_wide_are_refused_before_they_are_compiled():
    assert refuse_large(nested(MAX_DEPTH - 1)) is None
    assert "nested" in refuse_large(nested(MAX_DEPTH + 1))
    wide = {"items": {"properties": {str(i): {} for i in range(MAX_PROPERTIES + 1)}}}
    assert f"$.items.properties has {MAX_PROPERTIES + 1} properties" in refuse_large(wide)
    wide["items"]["properties"].popitem()
    assert refuse_large(wide) is None
