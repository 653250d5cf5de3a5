"""The guide's table of JSON-schema keywords, against the compiler."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from spaninfer import Engine, InvalidGrammar, StructuredOutput

pytest.importorskip("llguidance")

PAGE = Path(__file__).parents[2] / "docs/guides/structured-output.md"

# A schema that needs each keyword of the rows of what is supported.
SUPPORTED: dict[str, dict[str, Any]] = {
    "type": {"type": "integer"},
    "enum": {"enum": [1, "a"]},
    "const": {"const": {"a": 1}},
    "anyOf": {"anyOf": [{"type": "null"}, {"type": "string"}]},
    "allOf": {"allOf": [{"minimum": 1}, {"maximum": 2}]},
    "oneOf": {"oneOf": [{"type": "null"}, {"type": "string"}]},
    "$ref": {"$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a"},
    "$defs": {"$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a"},
    "definitions": {"definitions": {"a": {"type": "null"}}, "$ref": "#/definitions/a"},
    "minLength": {"type": "string", "minLength": 2},
    "maxLength": {"type": "string", "maxLength": 2},
    "pattern": {"type": "string", "pattern": "^a+$"},
    "minimum": {"type": "number", "minimum": 2},
    "maximum": {"type": "number", "maximum": 2},
    "exclusiveMinimum": {"type": "integer", "exclusiveMinimum": 2},
    "exclusiveMaximum": {"type": "integer", "exclusiveMaximum": 2},
    "multipleOf": {"type": "integer", "multipleOf": 3},
    "items": {"type": "array", "items": {"type": "null"}},
    "prefixItems": {"type": "array", "prefixItems": [{"type": "null"}]},
    "minItems": {"type": "array", "minItems": 2},
    "maxItems": {"type": "array", "maxItems": 2},
    "additionalItems": {"type": "array", "items": [{}], "additionalItems": False},
    "properties": {"properties": {"a": {"type": "null"}}},
    "required": {"type": "object", "required": ["a"]},
    "additionalProperties": {"type": "object", "additionalProperties": {"type": "null"}},
    "patternProperties": {"patternProperties": {"^a": {"type": "null"}}},
    "minProperties": {"type": "object", "minProperties": 1},
    "maxProperties": {"type": "object", "maxProperties": 2},
}
REFUSED: dict[str, Any] = {
    "not": {"type": "null"}, "if": {}, "then": {}, "else": {}, "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {}}, "dependencies": {"a": ["b"]}, "contains": {},
    "uniqueItems": True, "propertyNames": {"maxLength": 3}, "unevaluatedItems": False,
    "unevaluatedProperties": False, "$dynamicRef": "#a",
}  # fmt: skip
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid",
           "uri")  # fmt: skip


def rows() -> dict[str, list[str]]:
    """The words in code of each row of the table, by its first cell."""
    text = PAGE.read_text(encoding="utf-8").partition("## JSON schema")[2]
    table = re.findall(r"^\| (.+?) \| (.+) \|$", text.partition("\nOf the public")[0], re.M)
    return {first: re.findall("`(.+?)`", f"{first} {rest}") for first, rest in table}


def test_every_keyword_of_the_table_is_accepted_or_refused_as_it_says() -> None:
    found = rows()
    refused = set(found.pop("refused"))
    named = {word for words in found.values() for word in words} - {"format"}

    assert refused == REFUSED.keys()
    assert named == {*SUPPORTED, *FORMATS}
    with Engine("demo", memory="16MiB", max_len=64) as engine:
        for schema in SUPPORTED.values():
            engine.compile_grammar(StructuredOutput(json_schema=schema))
        for name in FORMATS:
            engine.compile_grammar(StructuredOutput(json_schema={"format": name}))
        for keyword, value in REFUSED.items():
            with pytest.raises(InvalidGrammar, match=re.escape(f"{keyword!r} at $.{keyword} is")):
                engine.compile_grammar(StructuredOutput(json_schema={keyword: value}))
