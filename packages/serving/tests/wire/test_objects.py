"""Objects inside bodies, as clients write them: null, defaults, and answers that are sent back."""

import json

import pytest
from spaninfer_serving.wire.chat import ChatRequest
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.messages import MessagesRequest
from spaninfer_serving.wire.parse import parse
from spaninfer_serving.wire.response_items import OutputCall, OutputMessage, OutputReasoning
from spaninfer_serving.wire.responses import ResponsesRequest

BREAKPOINT = {"mode": "explicit", "ttl": "30m"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": None}}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
CLAUDE_TOOL = {"name": "f", "input_schema": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
USE = {"type": "tool_use", "id": "1", "name": "f", "input": {}}


def chat(*parts, **more):
    return ChatRequest, {"messages": [{"role": "user", "content": list(parts)}]} | more


def response(*items, **more):
    return ResponsesRequest, {"input": [{"role": "user", "content": "x"}, *items]} | more


def message(*blocks, **more):
    said = [{"role": "assistant", "content": list(blocks)}] if blocks else []
    return MessagesRequest, {
        "max_tokens": 1, "messages": [{"role": "user", "content": "x"}, *said],
    } | more  # fmt: skip


def text(**more):
    return {"type": "text", "text": "x"} | more


ASKS_FOR_NOTHING = [
    chat(text(prompt_cache_breakpoint=None)),
    chat(text(prompt_cache_breakpoint=BREAKPOINT), IMAGE | {"prompt_cache_breakpoint": BREAKPOINT}),
    chat({"type": "file", "file": {"file_data": "data:image/png;base64,AA", "file_id": None}}),
    chat(text(), stream_options={"include_usage": None, "continuous_usage_stats": False}),
    response(tools=[TOOL | {"defer_loading": False, "allowed_callers": ["direct"]}]),
    response(tools=[TOOL | {"async": False, "output_schema": None, "allowed_callers": None}]),
    response(reasoning={"effort": None, "summary": None, "context": "auto", "mode": "standard"}),
    response(text={"format": None, "verbosity": None}),
    response(text={"format": {"type": "text", "name": None, "schema": None, "strict": None}}),
    response(CALL | {"namespace": None, "caller": {"type": "direct"}, "async": False}),
    response({"type": "function_call_output", "call_id": "1", "output": "x", "caller": None}),
    message(tools=[CLAUDE_TOOL | {"defer_loading": False, "allowed_callers": ["direct"]}]),
    message(tools=[CLAUDE_TOOL | {"eager_input_streaming": True, "input_examples": []}]),
    message(USE | {"caller": {"type": "direct"}, "toolset_name": None}),
    message(text(citations=None, cache_control=None)),
    message(thinking={"type": "adaptive", "display": None}, output_config={"effort": None}),
    message(tool_choice={"type": "none", "name": None, "disable_parallel_tool_use": None}),
]


@pytest.mark.parametrize(("kind", "body"), ASKS_FOR_NOTHING)
def test_null_and_defaults_inside_of_objects_pass(kind, body):
    parsed = parse(kind, json.dumps(body).encode())

    assert parsed == parse(kind, json.dumps(without_nulls(body)).encode())


def without_nulls(value):
    """Return a value of JSON without the keys of objects that are null."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("asked", "param", "code"),
    [
        (chat({"type": "file", "file": {"file_id": "a"}}),
         "messages[0].content[0].file.file_id", "unsupported_parameter"),
        (chat(text(), stream_options={"continuous_usage_stats": True}),
         "stream_options.continuous_usage_stats", "unsupported_parameter"),
        (response(tools=[TOOL | {"async": True}]), "tools[0].async", "unsupported_parameter"),
        (response(reasoning={"mode": "pro"}), "reasoning.mode", "unsupported_parameter"),
        (response(CALL | {"namespace": "crm"}), "input[1].namespace", "unsupported_parameter"),
        (message(tools=[CLAUDE_TOOL | {"defer_loading": True}]), "tools[0].defer_loading",
         "unsupported_parameter"),
        (message(USE | {"caller": {"type": "code_execution_20250825", "tool_id": "a"}}),
         "messages[1].content[0].caller", "unsupported_parameter"),
        (chat(text(Citations=[])), "messages[0].content[0].Citations", "unknown_parameter"),
        (chat(text(), chat_template_kwargs={"A-b": 1}), "chat_template_kwargs.A-b",
         "reserved_parameter"),
    ],
)  # fmt: skip
def test_what_asks_for_something_inside_of_an_object_is_refused_by_its_path(asked, param, code):
    with pytest.raises(Problem) as caught:
        parse(asked[0], json.dumps(asked[1]).encode())

    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.message.startswith(param)


@pytest.mark.parametrize("enabled", [0, 0.0, True, "false"])
def test_a_switch_that_has_to_be_false_takes_nothing_else(enabled):
    document = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "x"},
        "citations": {"enabled": enabled},
    }
    asked = {"max_tokens": 1, "messages": [{"role": "user", "content": [document]}]}

    with pytest.raises(Problem) as caught:
        parse(MessagesRequest, json.dumps(asked).encode())

    assert caught.value.param == "messages[0].content[0].citations.enabled"


def test_what_openais_client_makes_of_an_answer_is_taken_back():
    responses = pytest.importorskip("openai.types.responses")
    said = [
        (responses.ResponseOutputMessage, OutputMessage(
            id="msg_1", status="completed", content=[{"text": "x"}])),
        (responses.ResponseReasoningItem, OutputReasoning(
            id="rs_1", status="completed", content=[{"type": "reasoning_text", "text": "x"}])),
        (responses.ResponseFunctionToolCall, OutputCall(
            id="fc_1", status="completed", call_id="1", name="f", arguments="{}")),
    ]  # fmt: skip
    items = [
        theirs.model_validate(ours.model_dump()).model_dump(mode="json", by_alias=True)
        for theirs, ours in said
    ]
    kind, body = response(*items)

    _, answer, reasoning, call = parse(kind, json.dumps(body).encode()).input

    assert [part.text for part in answer.content] == ["x"]
    assert [part.text for part in reasoning.content] == ["x"]
    assert (call.call_id, call.name, call.arguments) == ("1", "f", "{}")


def test_what_anthropics_client_makes_of_an_answer_is_taken_back():
    types = pytest.importorskip("anthropic.types")
    blocks = [
        types.TextBlock.model_validate({"type": "text", "text": "x"}),
        types.ThinkingBlock.model_validate({"type": "thinking", "thinking": "x", "signature": ""}),
        types.ToolUseBlock.model_validate(USE),
    ]
    kind, body = message(*(block.model_dump(mode="json", by_alias=True) for block in blocks))

    text, thinking, use = parse(kind, json.dumps(body).encode()).messages[1].content

    assert (text.text, thinking.thinking) == ("x", "x")
    assert (use.id, use.name, use.input) == ("1", "f", {})
