import json

import pytest
from spaninfer_engine.errors import InvalidSampling
from spaninfer_engine.request.keywords import with_keywords
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.request.structured import MAX_GRAMMAR_BYTES, StructuredOutput


class Person:
    """What pydantic's models look like from outside."""

    @classmethod
    def model_json_schema(cls):
        return {"type": "object", "properties": {"name": {"type": "string"}}}


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ({"json_object": True}, "true"),
        ({"json_schema": {"type": "null"}}, '{"type": "null"}'),
        ({"json_schema": '{"type":"null"}'}, '{"type":"null"}'),
        ({"json_schema": Person}, json.dumps(Person.model_json_schema())),
        ({"regex": "a+"}, "a+"),
        ({"choice": ["a", "b"]}, '["a", "b"]'),
        ({"grammar": 'start: "a"'}, 'start: "a"'),
        ({"structural_tag": {"triggers": []}}, '{"triggers": []}'),
    ],
)
def test_a_form_has_a_kind_and_a_text(given, source):
    form = StructuredOutput(**given)

    assert ([form.kind], form.source) == (list(given), source)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "'nothing'; allowed is exactly one"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice"),
        ({"json_object": False}, "json_object is False"),
        ({"json_schema": [1]}, "allowed is a JSON object"),
        ({"json_schema": False}, "allowed is a JSON object"),
        ({"json_schema": "{"}, "allowed is a JSON object"),
        ({"json_schema": {"enum": [object()]}}, "allowed is a JSON object"),
        ({"json_schema": "[" * 100_000}, "allowed is a JSON object"),
        ({"regex": ""}, "a text that is not empty"),
        ({"choice": []}, "a list of texts"),
        ({"choice": ["a", ""]}, "a list of texts"),
        ({"choice": "ab"}, "a list of texts"),
        ({"choice": [1]}, "a list of texts"),
        ({"grammar": 5}, "a text that is not empty"),
        ({"structural_tag": "5"}, "allowed is a JSON object"),
        ({"regex": "a" * (MAX_GRAMMAR_BYTES + 1)}, f"at most {MAX_GRAMMAR_BYTES}"),
        ({"choice": ["é" * 1000] * 300}, f"at most {MAX_GRAMMAR_BYTES}"),
    ],
)
def test_what_is_no_form_is_refused_by_name(given, problem):
    with pytest.raises(InvalidSampling, match=problem):
        StructuredOutput(**given)


def test_a_schema_that_changes_later_changes_nothing():
    schema = {"properties": {"a": {"type": "string"}}}
    form = StructuredOutput(json_schema=schema)
    schema["properties"]["a"]["type"] = "number"

    assert "number" not in form.source


def test_the_names_of_forms_are_keyword_arguments_of_calls():
    made = with_keywords(SamplingParams(top_k=3), {"regex": "a+", "seed": 4}, "generate")

    assert made == SamplingParams(top_k=3, seed=4, structured=StructuredOutput(regex="a+"))
    with pytest.raises(InvalidSampling, match="exactly one"):
        with_keywords(SamplingParams(), {"regex": "a", "choice": ["a"]}, "generate")
    with pytest.raises(InvalidSampling, match="none beside regex"):
        with_keywords(SamplingParams(), {"regex": "a", "structured": None}, "generate")
    with pytest.raises(TypeError, match="did you mean 'json_schema'"):
        with_keywords(SamplingParams(), {"json_shema": {}}, "generate")


@pytest.mark.parametrize(
    ("name", "value"), [("mask", lambda _: None), ("ignore_eos", True), ("structured", {"a": 1})]
)
def test_what_a_form_cannot_stand_beside_is_refused_by_name(name, value):
    with pytest.raises(InvalidSampling, match=name):
        SamplingParams(**{"structured": StructuredOutput(regex="a"), name: value})
