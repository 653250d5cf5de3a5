"""Order of a list of prompts: the possibly longest starts first; answers come in prompt order."""

from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.schedule.batch_order import longest_first


def test_what_has_no_limit_is_begun_first_and_equal_limits_keep_their_order():
    limits = (5, None, 5, 90, None, 5)

    assert longest_first([SamplingParams(max_tokens=limit) for limit in limits]) == [
        *(1, 4, 3, 0, 2, 5)
    ]


def test_nothing_has_an_order_too():
    assert longest_first([]) == []
