import pytest
from driving import request
from spaninfer_engine.backends.backend import HOST_TUNING
from spaninfer_engine.errors import (
    InvalidPrompt,
    InvalidSampling,
    PromptTooLong,
    QueueFull,
    RequestError,
)
from spaninfer_engine.request import Placement, SamplingParams
from spaninfer_engine.schedule.admission import Admitted, Limits, Refused, admit

LIMITS = Limits(context=20, vocab=50, max_running=4, max_waiting=3, tuning=HOST_TUNING)


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "limit"), [(5, None, 20), (5, 7, 12), (5, 100, 20), (19, None, 20)]
)
def test_a_request_ends_at_max_tokens_or_with_the_context(prompt_len, max_tokens, limit):
    asked = request(1, [1] * prompt_len, sampling=SamplingParams(max_tokens=max_tokens))

    assert admit(asked, 0, LIMITS) == Admitted(limit)


@pytest.mark.parametrize(
    ("prompt", "options", "num_waiting", "error"),
    [
        ([], {}, 0, InvalidPrompt),
        ([50], {}, 0, InvalidPrompt),
        ([-1], {}, 0, InvalidPrompt),
        ([1] * 20, {}, 0, PromptTooLong),
        ([1], {"sampling": SamplingParams(stop_ids=(50,))}, 0, InvalidSampling),
        ([1], {"sampling": SamplingParams(logit_bias={50: 1.0})}, 0, InvalidSampling),
        ([1], {"placement": Placement(adapter="a")}, 0, RequestError),
        ([1], {}, 3, QueueFull),
        ([1], {"sampling": SamplingParams(n=2)}, 2, QueueFull),
    ],
)
def test_a_request_that_cannot_run_is_refused_with_its_reason(prompt, options, num_waiting, error):
    answer = admit(request(1, prompt, **options), num_waiting, LIMITS)

    assert isinstance(answer, Refused)
    assert type(answer.reason) is error


def test_more_choices_than_the_queue_holds_enter_an_empty_one():
    asked = request(1, [1], sampling=SamplingParams(n=9))

    assert isinstance(admit(asked, 0, LIMITS), Admitted)
