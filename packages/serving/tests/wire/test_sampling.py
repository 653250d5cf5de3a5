import inspect

import openai
import pytest
from pydantic import ValidationError
from spaninfer_serving.wire.chat import ChatRequest
from spaninfer_serving.wire.completions import CompletionRequest
from spaninfer_serving.wire.sampling import NOT_SUPPORTED

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def finding(body):
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate(HELLO | body)
    return caught.value.errors()[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("modalities", ["audio"]),
        ("suffix", "end"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(name, value):
    found = finding({name: value})

    assert found["type"] == "refused"
    assert (found["ctx"]["inside"], found["ctx"]["code"]) == ((name,), "unsupported_parameter")


@pytest.mark.parametrize(
    ("name", "value"),
    [("tools", [{"type": "function", "function": {"name": "f"}}]), ("tool_choice", "required")],
)
def test_a_text_completion_takes_no_tools(name, value):
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate({"prompt": "hello", name: value})

    found = caught.value.errors()[0]
    assert (found["ctx"]["inside"], found["ctx"]["code"]) == ((name,), "unsupported_parameter")


def test_values_that_ask_for_nothing_are_accepted():
    neutral = {name: value for name, values in NOT_SUPPORTED.items() for value in values}

    assert ChatRequest.model_validate(HELLO | neutral).messages[0].text() == "hello"


@pytest.mark.parametrize(
    ("kind", "body"), [(ChatRequest, HELLO), (CompletionRequest, {"prompt": "hello"})]
)
def test_null_is_the_default_of_every_parameter(kind, body):
    nulls = dict.fromkeys(kind.model_fields.keys() | NOT_SUPPORTED.keys())

    assert kind.model_validate(nulls | body) == kind.model_validate(body)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        (openai.resources.chat.Completions.create, ChatRequest),
        (openai.resources.Completions.create, CompletionRequest),
    ],
    ids=["chat", "text"],
)
def test_every_parameter_of_openais_client_is_known_by_name(method, kind):
    of_the_client = {"self", "timeout", "extra_headers", "extra_query", "extra_body"}

    names = set(inspect.signature(method).parameters) - of_the_client

    assert names - kind.model_fields.keys() - NOT_SUPPORTED.keys() == set()


def test_an_unknown_parameter_is_refused_by_name():
    found = finding({"temprature": 0.5})

    assert found["type"] == "refused"
    assert (found["ctx"]["inside"], found["ctx"]["code"]) == (("temprature",), "unknown_parameter")


@pytest.mark.parametrize(
    "body", [{"max_tokens": "5"}, {"max_tokens": 5.5}, {"temperature": "hot"}, {"stream": "yes"}]
)
def test_a_wrong_type_is_refused_instead_of_converted(body):
    assert finding(body)["loc"] == tuple(body)


def test_a_whole_number_is_a_temperature():
    assert ChatRequest.model_validate(HELLO | {"temperature": 1}).temperature == 1.0


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = ChatRequest.model_validate({"messages": [{"role": "user", "content": parts}]})

    assert body.messages[0].text() == "ab"


@pytest.mark.parametrize(("count", "words"), [(0, "at least 1"), (10_001, "at most 10000")])
def test_a_conversation_has_one_message_and_no_more_than_a_context_could_hold(count, words):
    with pytest.raises(ValidationError, match=words):
        ChatRequest.model_validate({"messages": HELLO["messages"] * count})


def test_a_request_carries_as_much_about_itself_as_openai_allows():
    pairs = {str(i): "x" for i in range(16)}

    assert ChatRequest.model_validate(HELLO | {"metadata": pairs}).metadata == pairs
    assert finding({"metadata": pairs | {"16": "x"}})["loc"] == ("metadata",)


def test_the_variables_of_a_template_take_a_megabyte_together():
    document = "x" * 500_000
    some = {"chat_template_kwargs": {"documents": [document], "other": document}}
    more = {"chat_template_kwargs": {"documents": [document], "other": [document, document]}}

    assert ChatRequest.model_validate(HELLO | some)
    found = finding(more)
    assert (found["loc"], found["ctx"]["code"]) == (("chat_template_kwargs",), "value_too_large")
