"""Sampling by kernels against sampling by definition."""

import numpy as np
import pytest
from spaninfer_engine.backends.cpu.sampling import CpuDraw, CpuLogprobs
from spaninfer_engine.run.logprobs import token_logprobs
from spaninfer_op_reference import RowSampling, sample

VOCAB = 1003
IDS = np.arange(0, 400, 10)
WISHES = [
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    {"typical_p": 0.9},
    {"repetition_penalty": 1.2, "output_ids": np.arange(9)},
    {"bad_words": ((3,), (5, 6))},
    {"banned": np.array([1, 2]), "min_p": 0.01},
    {"logit_bias": (np.array([4]), np.array([2.0], np.float32))},
    {"no_repeat_ngram": 2, "prompt_ids": np.array([1, 2, 1, 2])},
    {"allowed": np.arange(VOCAB) % 2 == 0, "presence_penalty": 1.5, "output_ids": np.arange(90)},
    {"temperature": 0.0, "banned": np.arange(500), "repetition_penalty": 1.4, "prompt_ids": IDS},
    {"logit_bias": (IDS, np.full(40, 3, np.float32)), "frequency_penalty": 0.7, "output_ids": IDS},
    {"no_repeat_ngram": 1, "output_ids": IDS, "repetition_penalty": 0.5, "typical_p": 0.5},
    {},
]


@pytest.fixture(scope="module")
def draw():
    return CpuDraw(VOCAB)


@pytest.mark.parametrize("wishes", [WISHES, WISHES[:1], WISHES[1:2]], ids=["all", "one", "other"])
def test_every_row_is_sampled_as_defined_by_every_sampler(draw, wishes):
    logits = np.random.default_rng(1).standard_normal((len(wishes), VOCAB)).astype(np.float32) * 3
    rows = [RowSampling(seed=11 + n, position=n, **wish) for n, wish in enumerate(wishes)]

    tokens, failed = draw(logits, rows)

    expected, _ = sample(logits, rows)
    assert not failed
    assert tokens.tolist() == expected.tolist()


def test_a_row_without_a_token_fails_with_the_reason_of_the_definition(draw):
    logits = np.random.default_rng(1).standard_normal((4, VOCAB)).astype(np.float32)
    logits[1], logits[3, 7] = -np.inf, np.nan
    rows = [RowSampling(seed=n) for n in range(4)]

    tokens, failed = draw(logits, rows)

    expected, why = sample(logits, rows)
    assert failed.keys() == why.keys() == {1, 3}
    assert "every token is masked" in str(failed[1])
    assert "is nan" in str(failed[3])
    assert tokens[[0, 2]].tolist() == expected[[0, 2]].tolist()


@pytest.mark.parametrize("count", [0, 3, 20])
@pytest.mark.parametrize("temperatures", [None, np.float32([1, 0.5, 2, 1, 0.5, 1e-3])])
def test_log_probabilities_are_those_of_numpy(count, temperatures):
    logits = np.random.default_rng(2).standard_normal((6, VOCAB)).astype(np.float32) * 4
    logits[4, 9] = np.nan
    ids = np.arange(6) * 100

    found, expected = (
        report(logits, ids, count, temperatures) for report in (CpuLogprobs(VOCAB), token_logprobs)
    )

    for mine, theirs in (
        *((found.token_ids, expected.token_ids), (found.ranks, expected.ranks)),
        (found.top_ids, expected.top_ids),
    ):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-5)
    np.testing.assert_allclose(found.top, expected.top, atol=1e-5)


def test_a_small_vocabulary_has_as_many_tokens_as_it_has():
    found = CpuLogprobs(5)(np.zeros((1, 5), np.float32), np.array([3]), 20)

    assert found.top_ids.tolist() == [[0, 1, 2, 3, 4]]
