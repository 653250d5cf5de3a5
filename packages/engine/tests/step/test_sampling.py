"""Sampling parameters as devices receive them."""

import pytest
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.step.plan import NewSequence
from spaninfer_engine.step.sampling import MAX_LISTED, DeviceSamplingParams, fits_kernel


@pytest.mark.parametrize(
    ("sampling", "end_ids", "by_host"),
    [
        ({"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1}, (2,), False),
        ({"repetition_penalty": 1.1, "presence_penalty": 1, "no_repeat_ngram": 3}, (2,), False),
        ({"min_tokens": 4}, (2,), False),
        ({"logit_bias": {1: 0.5}, "bad_words": ("x",)}, (), False),
        ({"logit_bias": dict.fromkeys(range(MAX_LISTED + 1), 0.5)}, (), True),
        ({"typical_p": 0.5}, (), False),
        ({"logprobs": 0}, (), False),
        ({"logprobs": 0, "processed_logprobs": True}, (), False),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_the_host_samples_what_the_kernel_cannot(sampling, end_ids, by_host):
    banned = ((5, 6),) if "bad_words" in sampling else ()
    entry = NewSequence(1, (7, 8, 9), SamplingParams(**sampling), 3, banned, end_ids)

    assert fits_kernel(entry) is not by_host


def test_a_device_gets_the_sampling_parameters_of_a_sequence():
    sampling = SamplingParams(temperature=0.5, top_k=3, frequency_penalty=0.25)

    params = DeviceSamplingParams.of(NewSequence(1, (7, 8), sampling, seed=2**64 - 1))

    assert (params.temperature, params.top_k, params.seed, params.prompt_len) == (
        0.5,
        3,
        2**64 - 1,
        2,
    )
    assert params.has_penalties
    assert (params.num_listed, params.logprobs) == (0, None)
    assert not DeviceSamplingParams.of(NewSequence(1, (7,), SamplingParams(), seed=0)).has_penalties


def test_a_device_gets_biases_bad_words_and_ends_that_come_too_early():
    sampling = SamplingParams(logit_bias={4: 1.5, 2: -1.0}, min_tokens=3)

    params = DeviceSamplingParams.of(
        NewSequence(1, (7, 8), sampling, 0, banned=((5, 6), (9,)), end_ids=(1, 2))
    )

    assert (params.bias_ids, params.biases) == ((4, 2), (1.5, -1.0))
    assert (params.bad_words, params.end_ids, params.end_until) == (((5, 6), (9,)), (1, 2), 5)
    assert params.num_listed == 2 + 3 + 3 + 2
    assert params.has_penalties
    assert (
        DeviceSamplingParams.of(NewSequence(1, (7,), SamplingParams(), 0, end_ids=(1, 2))).end_ids
        == ()
    )
