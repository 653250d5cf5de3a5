import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spaninfer_engine.run.logprobs import token_logprobs
from spaninfer_op_reference import top_logprobs

RNG = np.random.default_rng(0)


def check(logits, ids, count):
    """Compare with the definition in float64."""
    expected = top_logprobs(logits.astype(np.float64), ids, count)

    found = token_logprobs(logits, ids, count)

    assert [each.token_id for each in found] == ids.tolist()
    assert [each.rank for each in found] == expected.rank.tolist()
    assert [[token_id for token_id, _ in each.top] for each in found] == expected.top_ids.tolist()
    tops = [[logprob for _, logprob in each.top] for each in found]
    np.testing.assert_allclose([each.logprob for each in found], expected.chosen, atol=1e-5)
    np.testing.assert_allclose(tops, expected.top, atol=1e-5)


@pytest.mark.parametrize("vocab", [1, 2, 127, 128, 129, 4099, 151_936])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_every_row_is_what_the_definition_says(vocab, count):
    logits = RNG.standard_normal((3, vocab)).astype(np.float32) * 4

    check(logits, RNG.integers(0, vocab, 3), count)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 700), st.integers(0, 20), st.integers(1, 4))
def test_of_equal_logits_the_smaller_ids_come_first(seed, vocab, count, levels):
    rng = np.random.default_rng(seed)
    logits = rng.integers(0, levels, (2, vocab)).astype(np.float32)

    check(logits, rng.integers(0, vocab, 2), count)


def test_tokens_that_are_ruled_out_have_no_probability():
    logits = np.full((1, 300), -np.inf, np.float32)
    logits[0, [7, 290]] = 1.0, 2.0

    (found,) = token_logprobs(logits, np.array([290]), 3)

    assert found.rank == 1
    assert found.top[:2] == (
        (290, pytest.approx(-0.3133, abs=1e-4)),
        (7, pytest.approx(-1.3133, abs=1e-4)),
    )
    assert found.top[2] == (0, -np.inf)


def test_no_rows_have_no_reports():
    assert token_logprobs(np.zeros((0, 10), np.float32), np.zeros(0, np.int64), 2) == []


def test_a_row_of_nan_says_so_and_disturbs_no_other():
    logits = RNG.standard_normal((3, 300)).astype(np.float32)
    logits[1] = np.nan

    found = token_logprobs(logits, np.array([1, 2, 3]), 5)

    assert np.isnan(found.logprobs).tolist() == [False, True, False]
    assert np.isnan(found.top).all(-1).tolist() == [False, True, False]
