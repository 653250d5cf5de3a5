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
from spaninfer_engine.request.request import Placement, SamplingParams
from spaninfer_engine.schedule.admission import (
    TOKENS_PER_PLACE,
    Admitted,
    Limits,
    Queued,
    Refused,
    admit,
)

LIMITS = Limits(context=20, vocab=50, max_running=4, max_waiting=3, tuning=HOST_TUNING)


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "limit"), [(5, None, 20), (5, 7, 12), (5, 100, 20), (19, None, 20)]
)
def test_a_request_ends_at_max_tokens_or_with_the_context(prompt_len, max_tokens, limit):
    asked = request(1, [1] * prompt_len, sampling=SamplingParams(max_tokens=max_tokens))

    assert admit(asked, Queued(0, 0), LIMITS) == Admitted(limit)


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
    answer = admit(request(1, prompt, **options), Queued(num_waiting, 0), LIMITS)

    assert isinstance(answer, Refused)
    assert type(answer.reason) is error


def test_more_choices_than_the_queue_holds_enter_an_empty_one():
    asked = request(1, [1], sampling=SamplingParams(n=9))

    assert isinstance(admit(asked, Queued(0, 0), LIMITS), Admitted)


LONG = Limits(context=100_000, vocab=50, max_running=4, max_waiting=3, tuning=HOST_TUNING)


def test_prompts_that_wait_are_bounded_by_their_tokens_too():
    limit = 7 * TOKENS_PER_PLACE
    asked = request(1, [1] * 50, sampling=SamplingParams(n=2))

    assert isinstance(admit(asked, Queued(0, limit - 100), LONG), Admitted)
    refused = admit(asked, Queued(0, limit - 99), LONG)
    assert isinstance(refused, Refused)
    assert isinstance(refused.reason, QueueFull)
    assert f"{limit - 99} prompt tokens are waiting" in str(refused.reason)


def test_a_prompt_longer_than_all_that_may_wait_enters_an_empty_queue():
    assert isinstance(admit(request(1, [1] * 90_000), Queued(0, 0), LONG), Admitted)


def test_as_many_ordinary_requests_as_may_run_and_wait_are_never_too_many_tokens():
    asked = request(1, [1] * TOKENS_PER_PLACE)

    assert isinstance(admit(asked, Queued(2, 6 * TOKENS_PER_PLACE), LONG), Admitted)
