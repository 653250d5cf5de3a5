import pytest
from spaninfer_engine.errors import (
    EngineClosed,
    EngineError,
    InvalidSampling,
    PromptTooLong,
    QueueFull,
    TemplateError,
)
from spaninfer_serving.error_mapping import problem_of


@pytest.mark.parametrize(
    ("error", "status", "param", "code"),
    [
        (PromptTooLong(9000, 8192), 400, "messages", "context_length_exceeded"),
        (InvalidSampling("top_p", 3, "0 to 1"), 400, "top_p", None),
        (InvalidSampling("stop_ids", -1, "whole"), 400, "stop_token_ids", None),
        (TemplateError("roles must alternate"), 400, "messages", None),
        (QueueFull(9, 9), 429, None, "queue_full"),
        (EngineClosed("draining"), 503, None, "unavailable"),
        (EngineError("cuda is gone"), 500, None, None),
        (ZeroDivisionError("secret path"), 500, None, None),
    ],
)
def test_every_error_has_its_status_and_names_the_parameter(error, status, param, code):
    problem = problem_of(error, "messages")

    assert (problem.status, problem.param, problem.code) == (status, param, code)


def test_the_message_uses_the_name_on_the_wire():
    problem = problem_of(InvalidSampling("stop_ids", -1, "whole"), "prompt")

    assert problem.message.startswith("stop_token_ids is -1")


def test_an_inner_failure_tells_nothing_of_itself():
    assert "secret" not in problem_of(ZeroDivisionError("secret path"), "prompt").message


@pytest.mark.parametrize("error", [QueueFull(9, 9), EngineClosed("draining")])
def test_a_refusal_that_may_pass_later_says_when_to_come_back(error):
    assert problem_of(error, "prompt").headers["Retry-After"] == "1"
