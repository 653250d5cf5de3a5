"""Structured output over HTTP: accepted forms, refusals, and unaffected neighbours."""

from __future__ import annotations

import json
import re
from threading import Thread
from typing import Literal

import openai
import pytest
from pydantic import BaseModel, Field

pytest.importorskip("llguidance")

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}
POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 9},
        "y": {"enum": ["up", "down"]},
    },
    "required": ["x", "y"],
    "additionalProperties": False,
}


def schema_format(schema, **others):
    return {"type": "json_schema", "json_schema": {"name": "p", "schema": schema} | others}


def is_point(text):
    value = json.loads(text)
    return list(value) == ["x", "y"] and 0 <= value["x"] <= 9 and value["y"] in ("up", "down")


@pytest.mark.parametrize(
    ("form", "holds"),
    [
        ({"response_format": schema_format(POINT, strict=True, description="d")}, is_point),
        ({"response_format": schema_format(POINT)}, is_point),
        ({"structured_outputs": {"json": POINT}}, is_point),
        ({"structured_outputs": {"json": json.dumps(POINT)}}, is_point),
        ({"structured_outputs": {"regex": "[a-c]{9}"}}, re.compile("[a-c]{9}").fullmatch),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, ("yes", "no").__contains__),
        ({"structured_outputs": {"grammar": 'start: "a" /[0-9]{3}/'}}, re.compile(r"a\d{3}").match),
        ({"structured_outputs": {"grammar": 'root ::= "a" [0-9]'}}, re.compile(r"a\d").match),
        ({"response_format": {"type": "text"}, "structured_outputs": {"regex": "b"}}, "b".__eq__),
    ],
    ids=["strict", "schema", "json", "json text", "regex", "choice", "lark", "gbnf", "text"],
)
def test_an_answer_has_the_form_that_was_asked_for(client, form, holds):
    for path, prompt in ((CHAT, HELLO), (TEXT, {"prompt": "hi"})):
        body = prompt | form | {"n": 2, "seed": 3, "temperature": 1.3}
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        for choice in answer.json()["choices"]:
            text = choice["message"]["content"] if path == CHAT else choice["text"]
            assert holds(text), text
            assert choice["finish_reason"] == "stop"


def test_json_mode_begins_an_object_and_needs_nothing_else(client):
    body = HELLO | {"response_format": {"type": "json_object"}, "max_tokens": 20}
    text = client.post(CHAT, json=body).json()["choices"][0]["message"]["content"]

    assert text.startswith("{")


def test_text_and_null_ask_for_no_form(client):
    plain = client.post(CHAT, json=HELLO | {"temperature": 0, "max_tokens": 9}).json()
    for nothing in ({"response_format": None}, {"response_format": {"type": "text"}}):
        asked = HELLO | nothing | {"temperature": 0, "max_tokens": 9}
        assert client.post(CHAT, json=asked).json()["choices"] == plain["choices"]


REFUSALS = [
    # body, parameter, what the message says
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is missing"),
    ({"response_format": {"type": "text", "json_schema": {"name": "a", "schema": {}}}},
     "response_format.json_schema", "belongs to"),
    ({"response_format": schema_format(POINT, schma=1)}, "response_format.json_schema.schma",
     "did you mean 'schema'"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
     "response_format.json_schema.name", "is missing"),
    ({"response_format": schema_format({"properties": {"a": {"not": {}}}})},
     "response_format.json_schema.schema", "the keyword 'not' at $.properties.a.not"),
    ({"response_format": schema_format({"type": "array", "uniqueItems": True})},
     "response_format.json_schema.schema", "'uniqueItems' at $.uniqueItems"),
    ({"response_format": schema_format({"$ref": "http://127.0.0.1:1/x"})},
     "response_format.json_schema.schema", "does not fetch"),
    ({"structured_outputs": {"json": {"type": "strin"}}}, "structured_outputs.json", "$.type"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "a JSON object"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "unclosed group"),
    ({"structured_outputs": {"grammar": "x"}}, "structured_outputs.grammar", "neither Lark nor"),
    ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag", "trigg"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "a list of texts"),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"json": {}, "choice": ["a"]}}, "structured_outputs",
     "has json and choice; allowed is exactly one of json, regex, choice, grammar"),
    ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp", "did you mean 'regex'"),
    ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
     "structured_outputs", "send one"),
    ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos", "False"),
    ({"guided_json": {}}, "guided_json", "send structured_outputs.json"),
    ({"guided_regex": "a"}, "guided_regex", "send structured_outputs.regex"),
    ({"ebnf": "a"}, "ebnf", "send structured_outputs.grammar"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param", "says"), REFUSALS)
def test_what_is_no_form_is_refused_by_name(client, body, param, says):
    answer = client.post(CHAT, json=HELLO | body)

    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


def test_a_stream_carries_a_form_piece_by_piece(client):
    body = HELLO | {"response_format": schema_format(POINT), "stream": True, "logprobs": True}
    text = ""
    with client.stream("POST", CHAT, json=body) as events:
        for line in events.iter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line[6:])["choices"][0]
                text += choice["delta"].get("content") or ""

    assert is_point(text)


class Point(BaseModel):
    x: int = Field(ge=0, le=9)
    y: Literal["up", "down"]


class Path(BaseModel):
    points: list[Point] = Field(max_length=2)
    closed: bool


def test_openais_client_parses_answers_into_models_over_a_real_socket(live):
    host, port = live().address
    client = openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0)
    with client:
        for seed in range(3):
            answer = client.chat.completions.parse(
                model="tiny", messages=HELLO["messages"], response_format=Path, seed=seed
            )
            parsed = answer.choices[0].message.parsed
            assert isinstance(parsed, Path)
            assert len(parsed.points) <= 2
        with client.chat.completions.stream(
            model="tiny", messages=HELLO["messages"], response_format=Point, seed=1
        ) as stream:
            assert isinstance(stream.get_final_completion().choices[0].message.parsed, Point)


ATTACKS = [
    {"regex": "((a{1,1000}){1,1000}){1,1000}"},
    {"regex": "(a|b)*a(a|b){30}"},
    {"json": {"enum": [f"item {i}" for i in range(5000)]}},
    {"json": '{"items":' * 400 + "{}" + "}" * 400},
    {"json": {"properties": {f"p{i}": {} for i in range(3000)}}},
    {"json": {"$ref": "#"}},
    {"choice": [f"choice {i}" for i in range(5000)]},
    {"grammar": "start: R0\n" + "\n".join(f"R{i}: R{i + 1} R{i + 1}" for i in range(30))
     + '\nR30: "a"'},
    {"grammar": "root ::= " + "(" * 3000 + '"a"' + ")" * 3000},
]  # fmt: skip


def test_a_stream_goes_on_while_hostile_forms_are_compiled(live, at_rest):
    """Each attack has an answer, and the stream beside them the same text as without them."""
    host, port = live().address
    client = openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0)
    asked = {"model": "tiny", "prompt": "go on", "max_tokens": 200, "seed": 5}
    asked |= {"extra_body": {"ignore_eos": True}}
    statuses: list[int] = []

    def attack(form):
        try:
            client.completions.create(
                model="tiny", prompt="x", max_tokens=5, extra_body={"structured_outputs": form}
            )
            statuses.append(200)
        except openai.APIStatusError as refused:
            statuses.append(refused.status_code)

    with client:
        alone = client.completions.create(**asked).choices[0].text
        attackers = [Thread(target=attack, args=(form,)) for form in ATTACKS]
        stream = client.completions.create(**asked, stream=True)
        for each in attackers:
            each.start()
        beside = "".join(chunk.choices[0].text for chunk in stream)
        for each in attackers:
            each.join(120)

    assert beside == alone
    assert len(statuses) == len(ATTACKS)
    assert set(statuses) <= {200, 400, 503}
    at_rest()
