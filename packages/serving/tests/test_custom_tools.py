"""Custom tools over real sockets with OpenAI's client: inputs that are texts."""

import json
import re
from contextlib import contextmanager

import openai
import pytest
from fastapi.testclient import TestClient
from openai.types.chat import ChatCompletion
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from spaninfer_serving import Settings, create_app

RUN = {"name": "run", "description": "Runs Python."}
TOOLS = [{"type": "custom", "custom": RUN}]
ASK = [{"role": "user", "content": "Print it."}]
DATE = r"20[0-9]{2}-(0[1-9]|1[0-2])"


def held_to(grammar):
    return [
        {"type": "custom", "custom": {**RUN, "format": {"type": "grammar", "grammar": grammar}}}
    ]


def ask(client, messages=ASK, **options):
    return client.chat.completions.create(model="tiny", messages=messages, **options)


@pytest.fixture
def connected(listening, tool_engine):
    """What serves an engine, to OpenAI's client."""

    @contextmanager
    def serve(engine=tool_engine, **settings):
        with listening(engine, **settings) as (host, port):
            base_url = f"http://{host}:{port}/v1"
            with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
                yield client

    return serve


@pytest.fixture
def calling(connected, tool_engine):
    """A client of a model that begins each answer with a call, and the options for it."""
    [mark] = tool_engine.tokenizer.encode("<tool_call>", add_special=False, parse_special=True)
    options = {"reasoning_effort": "none", "parallel_tool_calls": False,
               "logit_bias": {mark: 100}, "seed": 1, "max_tokens": 300}  # fmt: skip
    with connected() as client:
        yield client, options


def joined(stream):
    """The custom call of a stream, as a program puts it together, and why the stream ended."""
    name, pieces, reason = None, [], None
    for event in stream:
        [choice] = event.choices
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or []:
            assert call.function is None
            name = call.custom.get("name", name)
            pieces.append(call.custom["input"])
    return name, pieces, reason


NAMED = {"type": "custom", "custom": {"name": "run"}}
DATED = held_to({"syntax": "regex", "definition": DATE})


@pytest.mark.parametrize("choice", ["auto", "required", NAMED])
def test_a_call_of_a_custom_tool_has_an_input_that_its_grammar_allows(calling, choice):
    client, options = calling

    answer = ask(client, tools=DATED, tool_choice=choice, **options)
    stream = ask(client, tools=DATED, tool_choice=choice, stream=True, **options)
    name, pieces, _ = joined(stream)

    [call] = answer.choices[0].message.tool_calls
    assert (call.type, call.custom.name, name) == ("custom", "run", "run")
    assert re.fullmatch(DATE, call.custom.input)
    ChatCompletion.model_validate(answer.to_dict(), strict=True)
    assert "".join(pieces) == call.custom.input
    assert len(pieces) > 3


def test_a_call_goes_back_to_the_model_as_it_was_with_its_result(calling):
    client, options = calling
    message = ask(client, tools=DATED, **options).choices[0].message
    [call] = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "done"}

    again = ask(client, [*ASK, message, result], tools=DATED, max_tokens=1)
    rendered = client.post(
        "../apply-template", body={"messages": [*ASK, message.to_dict(), result]}, cast_to=dict
    )

    assert json.dumps({"input": call.custom.input}) in rendered["prompt"]
    assert again.usage.prompt_tokens > 0


def test_a_response_has_a_custom_call_and_takes_its_result(calling):
    client, options = calling
    bias = options["logit_bias"]
    tools = [{"type": "custom", **RUN, "format": {"type": "grammar", "syntax": "regex",
                                                  "definition": DATE}}]  # fmt: skip
    asked = {"model": "tiny", "tools": tools, "reasoning": {"effort": "none"},
             "tool_choice": {"type": "custom", "name": "run"},
             "extra_body": {"logit_bias": bias, "seed": 1}, "max_output_tokens": 300}  # fmt: skip

    whole = client.responses.create(input="Run it.", **asked)
    events = list(client.responses.create(input="Run it.", stream=True, **asked))

    [call] = whole.output
    assert (call.type, call.name, call.status) == ("custom_tool_call", "run", "completed")
    assert re.fullmatch(DATE, call.input)
    deltas = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    [done] = [e for e in events if e.type == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done.input == call.input
    assert events[-1].response.output[0].input == call.input
    Response.model_validate(whole.to_dict(), strict=True)
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event.to_dict(), strict=True)

    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}
    kept = client.responses.create(input=[result], previous_response_id=whole.id, **asked)
    given = [{"role": "user", "content": "Run it."}, call.to_dict(), result]
    sent = client.responses.create(input=given, **asked)
    assert kept.usage.input_tokens == sent.usage.input_tokens > whole.usage.input_tokens


def test_a_lark_grammar_is_followed_where_inputs_are_written_as_they_are(connected, calling):
    _, options = calling
    lark = {"syntax": "lark", "definition": 'start: "a" (SEP "b")+\nSEP: /[-+]/'}

    with connected(tool_parser="qwen3_coder") as client:
        answer = ask(client, tools=held_to(lark), tool_choice="required", **options)

    [call] = answer.choices[0].message.tool_calls
    assert re.match(r"a([-+]b)*", call.custom.input)


REFUSED = [
    (held_to({"syntax": "lark", "definition": "start: /a/"}), {},
     "tools[0].custom.format.grammar.syntax", "qwen3_coder"),
    (held_to({"syntax": "regex", "definition": "("}), {},
     "tools[0].custom.format.grammar.definition", "regex"),
    (held_to({"syntax": "ebnf", "definition": "x"}), {},
     "tools[0].custom.format.grammar.syntax", "lark"),
    ([{"type": "custom", "custom": {**RUN, "format": {"type": "json"}}}], {},
     "tools[0].custom.format", "text, grammar"),
    (TOOLS * 2, {}, "tools[0].custom", "another tool"),
    (TOOLS, {"tool_choice": {"type": "function", "function": {"name": "run"}}}, "tool_choice",
     "custom 'run'"),
    (TOOLS, {"response_format": {"type": "json_object"}}, "tools", "send one of them"),
    ([{"type": "web_search"}], {}, "tools[0]", "function, custom"),
]  # fmt: skip


@pytest.fixture(scope="module")
def web(tool_engine):
    return TestClient(create_app(tool_engine, Settings()))


@pytest.mark.parametrize(("tools", "options", "param", "said"), REFUSED)
def test_what_a_custom_tool_cannot_be_is_refused_by_name(web, tools, options, param, said):
    answer = web.post("/v1/chat/completions", json={"messages": ASK, "tools": tools} | options)

    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert said in error["message"]


def test_a_dialect_that_has_no_grammar_takes_no_custom_tools(connected):
    with (
        connected(tool_parser="gemma4") as client,
        pytest.raises(openai.BadRequestError, match="gemma4") as caught,
    ):
        client.responses.create(
            model="tiny", input="Run it.", tools=[{"type": "custom", "name": "run"}]
        )

    assert caught.value.body["param"] == "tools[0]"
