"""/v1/messages over real sockets, with Anthropic's client."""

import json
from contextlib import contextmanager

import httpx
import pytest
from fastapi.testclient import TestClient
from recorded_answers import HERMES_NOW, HERMES_PARIS, OFFERED
from spaninfer_serving import Settings, create_app

TOOLS = [
    {"name": each["function"]["name"], "input_schema": each["function"].get("parameters") or
     {"type": "object"}} for each in OFFERED
]  # fmt: skip
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
BOTH = f"<think>\nThey ask.\n</think>\n\nOne moment.\n{HERMES_PARIS}\n{HERMES_NOW}"


@pytest.fixture(scope="module")
def anthropic():
    """Anthropic's client, which takes seconds to import: only where these tests run."""
    return pytest.importorskip("anthropic", reason="Anthropic's client is not installed")


@pytest.fixture
def claiming(scripted, anthropic):
    """What serves an engine that always says the same, and gives Anthropic's client of a key."""

    @contextmanager
    def serve(text, **settings):
        with scripted(text, **settings) as (host, port):
            yield lambda key="none": anthropic.Anthropic(
                base_url=f"http://{host}:{port}", api_key=key, max_retries=0
            )

    return serve


@pytest.fixture(scope="module")
def refuser(tool_engine):
    """A client of one server for all refusals: starting one takes longer than they do."""
    return TestClient(create_app(tool_engine, Settings()))


def say(client, messages=ASK, **options):
    settings = {"model": "tiny", "max_tokens": 500, "messages": messages}
    return client.messages.create(**(settings | options))


def without_ids(message):
    return [block.model_dump(exclude={"id"}, exclude_none=True) for block in message.content]


def test_a_text_is_answered_and_counted(claiming):
    with claiming("It is sunny.") as client_of:
        message = say(client_of(), system=[{"type": "text", "text": "Be short."}])
        counted = client_of().messages.count_tokens(model="tiny", messages=ASK, system="Be short.")

    [block] = message.content
    assert (block.type, block.text) == ("text", "It is sunny.")
    assert (message.stop_reason, message.role) == ("end_turn", "assistant")
    assert message.usage.output_tokens == len("It is sunny.") + 1
    cached = message.usage.cache_read_input_tokens
    assert message.usage.input_tokens + cached == counted.input_tokens
    assert message._request_id.startswith("req-")


@pytest.mark.slow
def test_thinking_text_and_calls_are_blocks(claiming):
    with claiming(BOTH) as client_of:
        message = say(client_of(), tools=TOOLS)

    thinking, text, paris, now = message.content
    assert thinking.thinking == "They ask."
    assert text.text == "One moment."
    assert (paris.name, paris.input) == ("get_weather", {"city": "Paris"})
    assert (now.name, now.input) == ("now", {})
    assert paris.id != now.id
    assert message.stop_reason == "tool_use"


def test_a_stream_builds_what_a_whole_message_is(claiming):
    with claiming(BOTH) as client_of:
        client = client_of()
        whole = say(client, tools=TOOLS)
        with client.messages.stream(
            model="tiny", max_tokens=500, messages=ASK, tools=TOOLS
        ) as stream:
            kinds = [event.type for event in stream]
            message = stream.get_final_message()

    assert without_ids(message) == without_ids(whole)
    assert (message.stop_reason, message.stop_sequence) == ("tool_use", None)
    assert message.usage.output_tokens == whole.usage.output_tokens
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4


@pytest.mark.slow
def test_a_call_and_its_result_go_back_to_the_model(claiming):
    with claiming(BOTH) as client_of:
        client = client_of()
        first = say(client, tools=TOOLS)
        call = first.content[2]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
        turns = [*ASK, {"role": "assistant", "content": first.content}]
        again = say(client, [*turns, {"role": "user", "content": [result]}], tools=TOOLS)
        failed = say(
            client, [*turns, {"role": "user", "content": [result | {"is_error": True}]}],
            tools=TOOLS,
        )  # fmt: skip

    def prompt_len(message):
        return message.usage.input_tokens + message.usage.cache_read_input_tokens

    assert prompt_len(again) > prompt_len(first) + len(HERMES_PARIS)
    assert prompt_len(failed) == prompt_len(again) + len("Error: ")


def test_the_reason_of_an_end_is_said(claiming):
    with claiming("One, two, three.") as client_of:
        cut = say(client_of(), max_tokens=3)
        stopped = say(client_of(), stop_sequences=[" two"])

    assert (cut.stop_reason, cut.content[0].text) == ("max_tokens", "One")
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " two")
    assert stopped.content[0].text == "One,"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "set"}])
def test_a_tool_that_has_to_be_used_is_used(anthropic, tool_engine, listening, choice):
    schema = {"type": "object", "properties": {"level": {"enum": ["low", "high"]}},
              "required": ["level"], "additionalProperties": False}  # fmt: skip
    with listening(tool_engine) as (host, port):
        client = anthropic.Anthropic(base_url=f"http://{host}:{port}", api_key="-", max_retries=0)
        message = say(
            client, tools=[{"name": "set", "input_schema": schema}], thinking={"type": "disabled"},
            tool_choice=choice | {"disable_parallel_tool_use": True}, extra_body={"seed": 1},
        )  # fmt: skip

    assert message.stop_reason == "tool_use"
    assert message.content[-1].input["level"] in ("low", "high")


def test_a_key_opens_in_either_header_and_a_wrong_one_is_refused_in_this_form(anthropic, claiming):
    with claiming("Yes.", api_keys=("k",)) as client_of:
        assert say(client_of("k")).content[0].text == "Yes."
        by_token = anthropic.Anthropic(
            base_url=client_of("k").base_url, auth_token="k", api_key=None, max_retries=0
        )
        assert say(by_token).content[0].text == "Yes."
        with pytest.raises(anthropic.AuthenticationError) as caught:
            say(client_of("wrong"))

    assert caught.value.body["error"]["type"] == "authentication_error"
    assert caught.value.body["request_id"] == caught.value.request_id


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"model": "other"}, "not_found_error", "'other' does not exist"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, "invalid_request_error",
         "maximum context length"),
        ({"max_tokens": 0}, "invalid_request_error", "max_tokens"),
        ({"stop_sequences": [""]}, "invalid_request_error", "stop_sequences"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "invalid_request_error",
         "thinking"),
        ({"extra_body": {"mcp_servers": [{}]}}, "invalid_request_error", "mcp_servers"),
        ({"extra_body": {"top_q": 1}}, "invalid_request_error", "top_q"),
        ({"extra_headers": {"anthropic-version": "2023-01-01"}}, "invalid_request_error",
         "allowed is 2023-06-01, or"),
        ({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]},
         "invalid_request_error", "messages[0].content[0] is not a block"),
        ({"tool_choice": {"type": "any"}}, "invalid_request_error", "tool_choice"),
        ({"tools": [{"name": "x", "input_schema": {"type": "string"}}]}, "invalid_request_error",
         "tools[0].input_schema is of the type 'string'"),
        ({"messages": [*ASK, {"role": "assistant", "content": "It is"}]}, "invalid_request_error",
         "messages[1] is the last turn, and the assistant's"),
    ],
)  # fmt: skip
def test_what_is_at_fault_is_said_in_this_form(refuser, options, kind, said):
    headers = options.get("extra_headers", {})
    body = {"messages": ASK, "max_tokens": 5} | options.get("extra_body", options)
    body.pop("extra_headers", None)

    answer = refuser.post("/v1/messages", json=body, headers=headers)

    assert answer.status_code in (400, 404)
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == kind
    assert said in answer.json()["error"]["message"]
    assert answer.json()["request_id"] == answer.headers["request-id"]


def test_turns_are_counted_whoever_has_the_last(refuser):
    turns = [*ASK, {"role": "assistant", "content": "It is sunny."}]

    counts = [
        refuser.post("/v1/messages/count_tokens", json={"messages": messages}).json()
        for messages in (ASK, turns)
    ]

    assert counts[0]["input_tokens"] < counts[1]["input_tokens"]


def test_blocks_that_become_too_many_messages_are_refused(refuser):
    result = {"type": "tool_result", "tool_use_id": "1"}
    pairs = [result, {"type": "text", "text": "x"}] * 5100

    answer = refuser.post(
        "/v1/messages", json={"max_tokens": 5, "messages": [{"role": "user", "content": pairs}]}
    )

    assert answer.status_code == 400
    assert "at most 10000 items" in answer.json()["error"]["message"]


@pytest.mark.slow
def test_the_examples_of_messages_are_answered(tool_engine, listening):
    with listening(tool_engine) as (host, port):
        address = f"http://{host}:{port}"
        paths = httpx.get(f"{address}/openapi.json").json()["paths"]
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            described = paths[path]["post"]["requestBody"]["content"]["application/json"]
            for example in described["examples"].values():
                answer = httpx.post(address + path, json=example["value"], timeout=120)
                assert answer.status_code == 200, answer.text
                assert json.dumps(answer.json())


def test_an_answer_has_the_form_of_a_schema_and_a_wrong_one_is_named(
    anthropic, tool_engine, listening
):
    def config(schema):
        return {"format": {"type": "json_schema", "schema": schema}}

    with listening(tool_engine) as (host, port):
        client = anthropic.Anthropic(base_url=f"http://{host}:{port}", api_key="-", max_retries=0)
        message = say(client, output_config=config({"enum": ["low", "high"]}))
        with pytest.raises(anthropic.BadRequestError, match=r"output_config\.format\.schema"):
            say(client, output_config=config({"$ref": "#/nowhere"}))

    assert json.loads(message.content[0].text) in ("low", "high")
