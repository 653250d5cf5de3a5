"""Objects in bodies: what /openapi.json says of them against what is taken.

What is taken is valid by the document: null, second names and values that ask for nothing included.
The reverse need not hold: the schema says neither which parameters exclude each other nor what a
model's context takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError
from spaninfer_serving.app import ROUTERS
from spaninfer_serving.openapi import EXAMPLES, PLACE, describe
from spaninfer_serving.wire.chat import ChatRequest, Message
from spaninfer_serving.wire.fields import ObjectFields
from spaninfer_serving.wire.input_parts import InputFile
from spaninfer_serving.wire.response_items import InputCall
from spaninfer_serving.wire.texts import ScoreRequest

DATA = "data:image/png;base64,AA"

# Objects that need more than their required parameters.
WHOLE: dict[type[BaseModel], dict[str, Any]] = {
    **{kind: next(iter(bodies.values())) for kind, bodies in EXAMPLES.items()},
    InputCall: {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    InputFile: {"type": "input_file", "file_data": DATA},
    Message: {"role": "user", "content": "x"},
}


def document() -> dict[str, Any]:
    app = FastAPI()
    for router in ROUTERS:
        app.include_router(router)
    return describe(app, [route for each in ROUTERS for route in each.routes])  # type: ignore[misc]


COMPONENTS = document()["components"]
SCHEMAS = COMPONENTS["schemas"]


def kinds_of(base: type[BaseModel]) -> Iterator[type[ObjectFields]]:
    for kind in base.__subclasses__():
        yield from (kind, *kinds_of(kind))


def name_of(kind: type[BaseModel]) -> str:
    """The name of what is read, where that differs from what is written."""
    name = kind.__name__
    return f"{name}-Input" if f"{name}-Input" in SCHEMAS else name


KINDS = sorted({each for each in kinds_of(ObjectFields) if name_of(each) in SCHEMAS}, key=name_of)


def is_taken(kind: type[BaseModel], given: object) -> bool:
    try:
        kind.model_validate(given)
    except ValidationError:
        return False
    return True


def is_valid(kind: type[BaseModel], given: object) -> bool:
    place = {"$ref": PLACE.format(model=name_of(kind)), "components": COMPONENTS}
    return Draft202012Validator(place).is_valid(given)


def least(schema: dict[str, Any]) -> Any:
    """A smallest value of a schema."""
    match schema:
        case {"$ref": place}:
            return least(SCHEMAS[place.rpartition("/")[2]])
        case {"const": value} | {"enum": [value, *_]}:
            return value
        case {"anyOf": [first, *_]} | {"oneOf": [first, *_]}:
            return least(first)
        case {"type": "object", "properties": of_object}:
            return {name: least(of_object[name]) for name in schema.get("required", ())}
        case {"type": "array", "items": items}:
            return [least(items)] * schema.get("minItems", 0)
        case {"type": "string"}:
            return DATA if schema.get("title") == "File Data" else "x"
        case {"type": "integer" | "number"}:
            return 1
        case {"type": "boolean"}:
            return False
    return {}


def whole(kind: type[BaseModel]) -> dict[str, Any]:
    made = WHOLE[kind] if kind in WHOLE else least(SCHEMAS[name_of(kind)])
    assert isinstance(made, dict)
    return made


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_null_is_described_wherever_it_is_taken(kind: type[ObjectFields]) -> None:
    given = whole(kind)
    assert is_taken(kind, given)
    assert is_valid(kind, given)
    names = SCHEMAS[name_of(kind)]["properties"].keys() | {"no_parameter"}

    nulls = {name: given | {name: None} for name in names}
    taken = {name for name, each in nulls.items() if is_taken(kind, each)}
    valid = {name for name, each in nulls.items() if is_valid(kind, each)}

    assert taken <= valid
    assert {name for name in valid - taken if name not in given} == set()
    assert set(kind.not_supported) <= taken


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_a_parameter_that_is_not_supported_is_described_with_the_values_that_it_takes(
    kind: type[ObjectFields],
) -> None:
    for name in kind.not_supported.keys() - kind.model_fields.keys():
        for value in (
            *kind.not_supported[name],
            "something",
            0,
            1,
            0.0,
            False,
            True,
            [0],
            {"a": 0},
        ):
            given = whole(kind) | {name: value}

            assert is_taken(kind, given) == is_valid(kind, given), value


def test_the_name_of_a_field_here_is_not_one_of_a_parameter() -> None:
    given = {"type": "json_schema", "schema": {}, "schema_": None}

    [kind] = [each for each in KINDS if each.__name__ == "JsonFormat"]

    assert not is_taken(kind, given)
    assert not is_valid(kind, given)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": DATA}}]},
        {"role": "user", "content": [{"type": "video_url", "video_url": {"url": DATA}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA"}}]},
        {"role": "user", "content": [{"type": "file", "file": {"file_data": DATA}}]},
        {"role": "assistant", "content": None},
        {"role": "assistant", "tool_calls": [{"id": "1", "index": 0, "function": {"name": "f"}}]},
        {"role": "user", "content": "x", "tool_calls": None, "a_field_of_others": None},
    ],
)
def test_a_message_that_is_taken_is_valid(message: dict[str, Any]) -> None:
    given = {"messages": [message]}

    assert is_taken(ChatRequest, given)
    assert is_valid(ChatRequest, given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"text_1": "x", "text_2": ["y"]}, True),
        ({"queries": "x", "documents": ["y"]}, True),
        ({"queries": ["x"], "text_2": "y"}, True),
        ({"queries": "x", "text_1": "x", "text_2": "y"}, False),
        ({"queries": "x"}, False),
    ],
)
def test_the_texts_of_a_score_are_described_by_both_names(
    given: dict[str, Any], expected: bool
) -> None:
    assert is_taken(ScoreRequest, given) == expected
    assert is_valid(ScoreRequest, given) == expected


def objects_of(value: object) -> Iterator[dict[str, Any]]:
    """All objects inside of a document."""
    for each in value.values() if isinstance(value, dict) else value:  # type: ignore[attr-defined]
        if isinstance(each, dict):
            yield each
        if isinstance(each, dict | list):
            yield from objects_of(each)


def test_what_is_one_of_several_is_valid_as_one_of_them_alone() -> None:
    choices = [each["oneOf"] for each in objects_of(SCHEMAS) if "oneOf" in each]
    assert len(choices) > 10

    for choice in choices:
        for kind in choice:
            schema = {"oneOf": choice, "components": COMPONENTS}
            if "required" not in kind:  # a choice of parameters; see the texts of a score
                assert Draft202012Validator(schema).is_valid(least(kind)), kind


def test_every_name_that_is_referred_to_is_described_once() -> None:
    places = [each["$ref"] for each in objects_of(document()) if isinstance(each.get("$ref"), str)]
    referred = {place.rpartition("/")[2] for place in places}

    assert referred <= SCHEMAS.keys()
    # Events are described by their form alone.
    assert SCHEMAS.keys() - referred == {"ChatChunk"}
