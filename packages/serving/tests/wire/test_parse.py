import pytest
from spaninfer_serving.wire.chat import ChatRequest
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.parse import check_headers, parse


def refusal(body):
    with pytest.raises(Problem) as caught:
        parse(ChatRequest, body)
    return caught.value


def test_the_most_precise_finding_is_told():
    problem = refusal(b'{"messages": [{"role": "user", "content": [{"type": "image"}]}]}')

    assert problem.param == "messages[0].content[0]"


def test_names_of_types_that_were_tried_are_no_part_of_the_path():
    assert refusal(b'{"messages": [{"role": "user", "content": 5}]}').param == "messages[0].content"


def test_an_unknown_parameter_has_a_code_of_its_own():
    problem = refusal(b'{"messages": [{"role": "user", "content": "x"}], "temprature": 1}')

    assert (problem.param, problem.code) == ("temprature", "unknown_parameter")


@pytest.mark.parametrize(
    ("body", "near"),
    [
        ('{"messages": [], "temprature": 1}', "temperature"),
        ('{"messages": [], "max_token": 1}', "max_tokens"),
        ('{"messages": [], "stream_options": {"include_usge": true}}', "include_usage"),
        ('{"messages": [{"role": "user", "contents": "x"}]}', "content"),
    ],
)
def test_a_name_that_is_almost_right_is_refused_with_the_nearest(body, near):
    assert refusal(body.encode()).message.endswith(f"; did you mean {near!r}?")


@pytest.mark.parametrize("choice", ['{"type": "auto"}', "5"])
def test_a_tool_choice_that_is_none_is_refused_with_words_and_objects(choice):
    messages = '[{"role": "user", "content": "x"}]'

    problem = refusal(f'{{"messages": {messages}, "tool_choice": {choice}}}'.encode())

    assert problem.message.startswith(
        "tool_choice is not a tool choice this server takes; allowed are none, auto, required and "
        "objects of type function, custom, allowed_tools"
    )


def test_a_name_that_is_near_to_none_is_refused_without_a_guess():
    assert refusal(b'{"messages": [], "zzz": 1}').message == (
        "zzz is not a parameter this server knows"
    )


def test_what_a_text_completion_takes_is_refused_in_a_chat_with_its_address():
    assert refusal(b'{"prompt": "Once"}').message == (
        "prompt is not a parameter here; /v1/completions takes it"
    )


def test_of_many_unknown_parameters_one_is_named():
    many = b",".join(b'"p%d": 1' % number for number in range(1000))

    problem = refusal(b"{" + many + b"}")

    assert problem.code == "unknown_parameter"
    assert problem.message.startswith(f"{problem.param} is not a parameter this server knows")


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"5", b"null"])
def test_a_body_that_is_no_object_is_refused_as_such(body):
    assert refusal(body).message == "the body should be an object"


def test_a_message_that_is_no_object_is_refused_as_such():
    assert refusal(b'{"messages": ["x"]}').message == "messages[0] should be an object"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"messages": []}', "messages should have at least 1 item, not 0"),
        ("{}", "messages is missing"),
        ('{"messages": [{"role": "user"}]}', "messages[0].content is missing"),
        ('{"temperature": "hot"}', 'temperature should be a valid number; it is "hot"'),
        ('{"n": true}', "n should be a valid integer; it is true"),
        ('{"deadline_s": 0}', "deadline_s should be greater than 0; it is 0"),
        ('{"stop": [1]}', "stop[0] should be a valid string; it is 1"),
        ('{"metadata": "x"}', 'metadata should be a valid dictionary; it is "x"'),
    ],
)
def test_a_refusal_says_what_is_allowed_and_what_came(body, message):
    assert refusal(body.encode()).message == message


def test_what_is_not_supported_has_a_code_of_its_own():
    problem = refusal(b'{"messages": [{"role": "user", "content": "x"}], "suffix": "y"}')

    assert (problem.param, problem.code) == ("suffix", "unsupported_parameter")


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/problem+json"]
)
def test_json_may_be_announced_in_several_ways(kind):
    check_headers({"content-type": kind})
