"""Answers and events as they travel, against the types of OpenAI's and Anthropic's clients.

The clients build their objects without looking: a field that is missing is an error only where a
program reads it. Here each is validated.
"""

import json

import httpx
import pytest
from openai.types import Completion, ErrorObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from recorded_answers import HERMES_NOW, HERMES_PARIS, OFFERED

anthropic = pytest.importorskip("anthropic.types", reason="Anthropic's client is not installed")

BOTH = f"<think>\nThey ask.\n</think>\n\nOne moment.\n{HERMES_PARIS}\n{HERMES_NOW}"
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
CHAT = {"messages": ASK, "tools": OFFERED, "logprobs": True, "top_logprobs": 2}
RESPONSES = {"input": ASK, "tools": [{"type": "function", **each["function"]} for each in OFFERED]}
CLAUDE_TOOLS = [
    {"name": each["function"]["name"], "input_schema": {"type": "object"}} for each in OFFERED
]
MESSAGES = {"messages": ASK, "max_tokens": 500, "tools": CLAUDE_TOOLS}
STREAMED = {"stream_options": {"include_usage": True}}

WHOLE = [
    ("/v1/chat/completions", CHAT, ChatCompletion),
    ("/v1/chat/completions", CHAT | {"n": 2, "max_tokens": 3}, ChatCompletion),
    ("/v1/completions", {"prompt": ["x", "y"], "max_tokens": 3, "logprobs": 1}, Completion),
    ("/v1/completions", {"prompt": "x", "max_tokens": 3, "echo": True}, Completion),
    ("/v1/responses", RESPONSES, Response),
    ("/v1/responses", RESPONSES | {"max_output_tokens": 3}, Response),
    ("/v1/messages", MESSAGES, anthropic.Message),
    ("/v1/messages", MESSAGES | {"stop_sequences": ["moment"]}, anthropic.Message),
    ("/v1/messages/count_tokens", {"messages": ASK}, anthropic.MessageTokensCount),
]
EVENTS = [
    ("/v1/chat/completions", CHAT | STREAMED, ChatCompletionChunk),
    ("/v1/completions", {"prompt": "x", "max_tokens": 3, "logprobs": 1} | STREAMED, Completion),
    ("/v1/responses", RESPONSES, ResponseStreamEvent),
    ("/v1/responses", RESPONSES | {"max_output_tokens": 40}, ResponseStreamEvent),
    ("/v1/messages", MESSAGES, anthropic.RawMessageStreamEvent),
    ("/v1/messages", MESSAGES | {"max_tokens": 40}, anthropic.RawMessageStreamEvent),
]
# Of a chunk that does not end its choice: null, in OpenAI's own streams as well.
NOT_YET = ("choices", 0, "finish_reason")


def refused_fields(kind, said):
    """Return what the type of a client finds wrong with an answer: paths, reasons, what came."""
    try:
        TypeAdapter(kind).validate_json(json.dumps(said), strict=True)
    except ValueError as error:
        found = error.errors(include_url=False)
        return [(each["loc"], each["msg"], each["input"]) for each in found]
    return []


@pytest.mark.parametrize(("path", "body", "kind"), WHOLE)
def test_a_whole_answer_is_of_the_client_s_type(scripted, path, body, kind):
    with scripted(BOTH) as (host, port):
        answer = httpx.post(f"http://{host}:{port}{path}", json=body, timeout=120)

    assert answer.status_code == 200
    assert refused_fields(kind, answer.json()) == []


@pytest.mark.parametrize(("path", "body", "kind"), EVENTS)
def test_each_event_is_of_the_client_s_type_and_named_by_it(scripted, path, body, kind):
    with scripted(BOTH) as (host, port):
        asked = body | {"stream": True}
        answer = httpx.post(f"http://{host}:{port}{path}", json=asked, timeout=120)

    lines = [line for line in answer.text.split("\n") if line and not line.startswith(":")]
    names = [line[7:] for line in lines if line.startswith("event: ")]
    data = [line[6:] for line in lines if line.startswith("data: ")]
    said = [json.loads(each) for each in data if each != "[DONE]"]
    assert len(said) > 3
    found = [each for event in said for each in refused_fields(kind, event)]
    assert [each for each in found if (each[0], each[2]) != (NOT_YET, None)] == []
    assert names == [each["type"] for each in said] if "type" in said[0] else not names


def test_the_list_of_models_and_an_error_are_of_the_client_s_types(scripted):
    with scripted(BOTH) as (host, port), httpx.Client(base_url=f"http://{host}:{port}") as client:
        [model] = client.get("/v1/models").json()["data"]
        refusal = client.post("/v1/completions", json={"prompt": 5}).json()["error"]
        other = client.post("/v1/messages", json={"messages": 5}).json()

    assert refused_fields(Model, model) == refused_fields(anthropic.ModelInfo, model) == []
    assert refused_fields(ErrorObject, refusal) == []
    assert refused_fields(anthropic.ErrorResponse, other) == []
