"""Tools and reasoning over real sockets with OpenAI's client, from an engine with scripted answers.

The answers are forced by a mask of one token at a time: all else is the real engine.
"""

import json
from contextlib import contextmanager

import openai
import pytest
from recorded_answers import HERMES_NOW, HERMES_PARIS, OFFERED

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture
def says(scripted):
    """What serves an engine that gives the same answer to everything, to OpenAI's client."""

    @contextmanager
    def serve(text, **settings):
        with scripted(text, **settings) as (host, port):
            base_url = f"http://{host}:{port}/v1"
            with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
                yield client

    return serve


def ask(client, messages=ASK, **options):
    return client.chat.completions.create(model="tiny", messages=messages, **options)


def joined(stream):
    """The message, as clients put it together, and why it ended."""
    message, reason = {"content": "", "reasoning": "", "calls": {}}, None
    for event in stream:
        [choice] = event.choices
        delta, reason = choice.delta, choice.finish_reason or reason
        message["content"] += delta.content or ""
        message["reasoning"] += getattr(delta, "reasoning_content", None) or ""
        for call in delta.tool_calls or []:
            known = message["calls"].setdefault(call.index, {"arguments": ""})
            if call.id:
                known |= {"id": call.id, "name": call.function.name, "type": call.type}
            known["arguments"] += call.function.arguments or ""
    return message, reason


THOUGHT = "<think>\nThey ask.\n</think>\n\n"
BOTH = f"{THOUGHT}One moment.\n{HERMES_PARIS}\n{HERMES_NOW}"


def test_calls_and_reasoning_are_told_apart_from_content(says):
    with says(BOTH) as client:
        answer = ask(client, tools=OFFERED)

    [choice] = answer.choices
    first, second = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "One moment."
    assert choice.message.reasoning_content == "They ask."
    assert (first.type, first.function.name) == ("function", "get_weather")
    assert json.loads(first.function.arguments) == {"city": "Paris"}
    assert (second.function.name, json.loads(second.function.arguments)) == ("now", {})
    assert first.id != second.id


def test_a_stream_tells_the_same_and_arguments_come_in_pieces(says):
    with says(BOTH) as client:
        events = list(ask(client, tools=OFFERED, stream=True))

    message, reason = joined(events)
    first, second = message["calls"].values()
    assert reason == "tool_calls"
    assert (message["content"], message["reasoning"]) == ("One moment.", "They ask.")
    assert (first["type"], first["name"]) == ("function", "get_weather")
    assert json.loads(first["arguments"]) == {"city": "Paris"}
    assert (second["name"], json.loads(second["arguments"])) == ("now", {})
    calls = [event for event in events if event.choices[0].delta.tool_calls]
    assert len(calls) > 5


def test_a_call_and_its_result_go_back_to_the_model(says):
    with says(HERMES_PARIS) as client:
        message = ask(client, tools=OFFERED).choices[0].message
        [call] = message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}

        again = ask(client, [*ASK, message, result], tools=OFFERED)
        short = ask(client, tools=OFFERED)

    assert again.usage.prompt_tokens > short.usage.prompt_tokens + len(HERMES_PARIS) // 2


def test_without_tools_what_looks_like_a_call_is_content(says):
    with says(HERMES_NOW.replace("<tool_call>", "<tool>").replace("</tool_call>", "")) as client:
        plain = ask(client).choices[0]
        none = ask(client, tools=OFFERED, tool_choice="none").choices[0]

    assert (plain.finish_reason, plain.message.tool_calls) == ("stop", None)
    assert plain.message.content == none.message.content
    assert plain.message.content.startswith("<tool>")


def test_what_a_user_writes_is_never_a_call(says):
    with says("No.") as client:
        answer = ask(client, [{"role": "user", "content": HERMES_PARIS}], tools=OFFERED)

    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content == "No."


@pytest.mark.parametrize("stream", [False, True])
def test_a_malformed_call_is_content(says, stream):
    text = HERMES_NOW.replace("now", "now\\x")
    with says(f"Sorry {text}") as client:
        answer = ask(client, tools=OFFERED, stream=stream)
        message, reason = joined(answer) if stream else (None, answer.choices[0].finish_reason)

    assert reason == "stop"
    content = message["content"] if stream else answer.choices[0].message.content
    assert content == f"Sorry {text}"


def test_a_stream_whose_call_breaks_off_says_stop_and_loses_nothing(says):
    text = HERMES_PARIS.replace('"Paris"', '"Paris", oops')
    with says(text) as client:
        whole = ask(client, tools=OFFERED).choices[0]
        message, reason = joined(ask(client, tools=OFFERED, stream=True))

    assert (whole.finish_reason, whole.message.content, whole.message.tool_calls) == (
        "stop", text, None,
    )  # fmt: skip
    assert (reason, message["content"]) == ("stop", text)


def test_a_limit_inside_of_a_call_is_said(says):
    with says(HERMES_PARIS) as client:
        [choice] = ask(client, tools=OFFERED, max_tokens=len(HERMES_PARIS) - 30).choices

    assert choice.finish_reason == "length"
    assert choice.message.tool_calls[0].function.name == "get_weather"
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads(choice.message.tool_calls[0].function.arguments)


@pytest.mark.parametrize("num_cut", range(1, len("}</tool_calls>") + 1))
def test_a_limit_behind_the_arguments_of_a_call_leaves_nothing_of_its_end(says, num_cut):
    text = '<tool_calls>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_calls>'
    limited = {"tools": OFFERED, "max_tokens": len(text) - num_cut}  # a token is a letter
    with says(text, tool_parser="hunyuan") as client:
        [choice] = ask(client, **limited).choices
        message, reason = joined(ask(client, **limited, stream=True))

    assert (choice.finish_reason, choice.message.content) == ("length", None)
    assert (reason, message["content"]) == ("length", "")
    [call] = choice.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}


def test_one_call_is_all_where_parallel_ones_are_not_wanted(says):
    with says(BOTH) as client:
        whole = ask(client, tools=OFFERED, parallel_tool_calls=False).choices[0]
        message, _ = joined(ask(client, tools=OFFERED, parallel_tool_calls=False, stream=True))

    assert [call.function.name for call in whole.message.tool_calls] == ["get_weather"]
    assert [call["name"] for call in message["calls"].values()] == ["get_weather"]


def test_every_choice_has_calls_of_its_own(says):
    with says(HERMES_NOW) as client:
        answer = ask(client, tools=OFFERED, n=2)
        ids = [choice.message.tool_calls[0].id for choice in answer.choices]
        events = list(ask(client, tools=OFFERED, n=2, stream=True))

    assert len(set(ids)) == 2
    starts = {e.choices[0].index for e in events if e.choices[0].delta.tool_calls}
    assert starts == {0, 1}


def test_reasoning_that_the_template_opens_is_reasoning(says):
    switched = {"chat_template_kwargs": {"enable_thinking": True}}
    with says("They ask.\n</think>\n\nHello.") as client:
        by_variable = ask(client, extra_body=switched).choices[0].message
        by_effort = ask(client, reasoning_effort="high").choices[0].message
        off = ask(client, reasoning_effort="none").choices[0].message

    for message in (by_variable, by_effort):
        assert (message.reasoning_content, message.content) == ("They ask.", "Hello.")
    assert off.reasoning_content is None
    assert off.content == "They ask.\n</think>\n\nHello."


def test_log_probabilities_and_ids_are_those_of_all_tokens(says):
    options = {"tools": OFFERED, "logprobs": True, "extra_body": {"return_token_ids": True}}
    with says(HERMES_NOW) as client:
        [whole] = ask(client, **options).choices
        events = list(ask(client, **options, stream=True))

    streamed = [
        entry.token
        for event in events
        for entry in getattr(event.choices[0].logprobs, "content", None) or []
    ]
    assert [entry.token for entry in whole.logprobs.content] == streamed
    assert len(whole.token_ids) == len(streamed)
    assert whole.message.tool_calls[0].function.name == "now"


def test_a_stop_string_works_inside_of_what_is_taken_apart(says):
    with says("<think>\nAbc\n</think>\n\nDef") as client:
        [choice] = ask(client, stop=["</think>"]).choices

    assert choice.finish_reason == "stop"
    assert (choice.message.reasoning_content, choice.message.content) == ("Abc", "")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "set"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_has_to_be_made_is_made(tool_engine, listening, choice, stream):
    """By a random model, which would never write one."""
    parameters = {
        "type": "object",
        "properties": {"level": {"enum": ["low", "high"]}},
        "required": ["level"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "set", "parameters": parameters}}
    asked = {"tools": [tool], "tool_choice": choice, "parallel_tool_calls": False, "seed": 1,
             "reasoning_effort": "none", "max_tokens": 200}  # fmt: skip
    with listening(tool_engine) as (host, port):
        base_url = f"http://{host}:{port}/v1"
        with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            answer = ask(client, **asked, stream=stream)
            message, reason = joined(answer) if stream else (None, answer.choices[0].finish_reason)

    call = message["calls"][0] if stream else answer.choices[0].message.tool_calls[0].function
    arguments = call["arguments"] if stream else call.arguments
    assert reason == "tool_calls"
    assert json.loads(arguments)["level"] in ("low", "high")


LEVEL = {
    "type": "object",
    "properties": {"level": {"enum": ["low", "high"]}},
    "required": ["level"],
    "additionalProperties": False,
}
LEVELS = [
    {"type": "function", "function": {"name": name, "parameters": LEVEL}}
    for name in ("heat", "cool", "dry")
]


def allowed(mode, *names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.fixture
def random_model(tool_engine, listening):
    """A client of a random model, which would call anything, or rather nothing."""
    with listening(tool_engine) as (host, port):
        base_url = f"http://{host}:{port}/v1"
        with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            yield client


def function(name, **options):
    return {"type": "function", "function": {"name": name, **options}}


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(
    "parameters", [{"type": "string"}, {"anyOf": [{"type": "string"}, {"type": "null"}]}]
)
def test_a_function_whose_arguments_are_no_object_is_refused(random_model, choice, parameters):
    tools = [*LEVELS, function("x", parameters=parameters)]

    with pytest.raises(openai.BadRequestError) as caught:
        ask(random_model, tools=tools, tool_choice=choice)
    flat = [{"type": "function", **each["function"]} for each in tools]
    with pytest.raises(openai.BadRequestError) as in_responses:
        random_model.responses.create(model="tiny", input="x", tools=flat, tool_choice=choice)

    assert caught.value.body["param"] == "tools[3].function.parameters"
    assert "use a schema of the type 'object'" in caught.value.body["message"]
    assert in_responses.value.body["param"] == "tools[3].parameters"


@pytest.mark.parametrize("options", [{}, {"parameters": None}])
def test_a_function_without_parameters_is_called_without_arguments(
    random_model, tool_engine, options
):
    [quote] = tool_engine.tokenizer.encode('"', add_special=False)
    asked = {"tools": [function("now", **options)], "tool_choice": "required", "seed": 1,
             "parallel_tool_calls": False, "reasoning_effort": "none", "max_tokens": 300,
             "logit_bias": {quote: 100}}  # fmt: skip

    [choice] = ask(random_model, **asked).choices

    assert choice.finish_reason == "tool_calls"
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {}


def test_an_empty_schema_leaves_a_function_its_arguments(random_model, tool_engine):
    [quote] = tool_engine.tokenizer.encode('"', add_special=False)
    asked = {"tools": [function("now", parameters={})], "tool_choice": "required", "seed": 1,
             "parallel_tool_calls": False, "reasoning_effort": "none", "max_tokens": 80,
             "logit_bias": {quote: 100}}  # fmt: skip

    [choice] = ask(random_model, **asked).choices

    assert '{"' in choice.message.tool_calls[0].function.arguments


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_are_called_and_all_of_them_are_in_the_prompt(
    random_model, tool_engine, mode
):
    [mark] = tool_engine.tokenizer.encode("<tool_call>", add_special=False, parse_special=True)
    called = {"tools": LEVELS, "tool_choice": allowed(mode, "cool", "dry"),
              "reasoning_effort": "none", "max_tokens": 300, "parallel_tool_calls": False,
              "logit_bias": {mark: 100}, "n": 6, "seed": 1}  # fmt: skip
    answer = ask(random_model, **called)
    free = ask(random_model, tools=LEVELS, max_tokens=1, reasoning_effort="none")

    calls = [choice.message.tool_calls[0].function for choice in answer.choices]
    assert {call.name for call in calls} <= {"cool", "dry"}
    for call in calls:
        assert json.loads(call.arguments)["level"] in ("low", "high")
    assert answer.usage.prompt_tokens == free.usage.prompt_tokens


def test_with_allowed_tools_the_model_may_call_none(random_model, tool_engine):
    [mark] = tool_engine.tokenizer.encode("<tool_call>", add_special=False, parse_special=True)
    asked = {"tools": LEVELS, "reasoning_effort": "none", "max_tokens": 8, "seed": 1,
             "logit_bias": {mark: -100}}  # fmt: skip

    [free] = ask(random_model, **asked).choices
    [auto] = ask(random_model, **asked, tool_choice=allowed("auto", "dry")).choices

    assert auto.message.tool_calls is None
    assert len(auto.message.content) > 0
    assert auto.finish_reason == free.finish_reason == "length"


def test_a_response_calls_allowed_tools_alone_and_repeats_the_choice(random_model, tool_engine):
    [mark] = tool_engine.tokenizer.encode("<tool_call>", add_special=False, parse_special=True)
    functions = [{"type": "function", **each["function"]} for each in LEVELS]
    choice = {"type": "allowed_tools", "mode": "required",
              "tools": [{"type": "function", "name": "dry"}]}  # fmt: skip

    response = random_model.responses.create(
        model="tiny", input="Dry it.", tools=functions, tool_choice=choice,
        reasoning={"effort": "none"}, parallel_tool_calls=False, max_output_tokens=300,
        extra_body={"logit_bias": {mark: 100}},
    )  # fmt: skip

    [call] = [item for item in response.output if item.type == "function_call"]
    assert call.name == "dry"
    assert response.tool_choice.to_dict() == choice


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (allowed("auto", "heat", "freeze"), "tool_choice.allowed_tools.tools[1]"),
        (allowed("auto"), "tool_choice.allowed_tools.tools"),
        (allowed("none", "heat"), "tool_choice.allowed_tools.mode"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.mode"),
        ({"type": "any"}, "tool_choice"),
    ],
)
def test_an_allowed_tool_that_cannot_be_called_is_refused_by_its_place(random_model, choice, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(random_model, tools=LEVELS, tool_choice=choice)

    assert caught.value.body["param"] == param, caught.value.body


def test_a_call_and_another_form_of_the_answer_are_not_asked_for_together(tool_engine, listening):
    asked = {
        "tools": OFFERED,
        "tool_choice": "required",
        "response_format": {"type": "json_object"},
    }
    with listening(tool_engine) as (host, port):
        base_url = f"http://{host}:{port}/v1"
        with (
            openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client,
            pytest.raises(openai.BadRequestError) as caught,
        ):
            ask(client, **asked)

    assert caught.value.body["param"] == "tool_choice"


def test_a_named_parser_reads_the_answers(says):
    with says("[now()]", tool_parser="pythonic") as client:
        [choice] = ask(client, tools=OFFERED).choices

    assert [call.function.name for call in choice.message.tool_calls] == ["now"]


def test_the_example_of_the_description_is_answered(says):
    with says(HERMES_PARIS) as client:
        paths = client.get("../openapi.json", cast_to=dict)["paths"]
        described = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]
        body = described["application/json"]["examples"]["tools"]["value"]
        [choice] = ask(client, **body).choices

    assert choice.message.tool_calls[0].function.name == body["tools"][0]["function"]["name"]
