"""Log-probabilities of tokens against the definition in float64."""

import numpy as np
import pytest
from spaninfer_kernels_cpu import DTypeError, Logprobs, ShapeError, SizeError
from spaninfer_op_reference import top_logprobs

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("vocab", [1, 2, 127, 4099, 151_936])
@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_every_row_is_what_the_definition_says(vocab, num_top):
    num_top = min(num_top, vocab)
    logits = (4 * RNG.standard_normal((5, vocab))).astype(np.float32)
    ids = RNG.integers(0, vocab, 5).astype(np.int32)

    found = Logprobs(vocab)(logits, ids, num_top)

    expected = top_logprobs(logits.astype(np.float64), ids, num_top)
    np.testing.assert_allclose(found.chosen, expected.chosen, atol=1e-5)
    np.testing.assert_array_equal(found.ranks, expected.rank)
    np.testing.assert_array_equal(found.top_ids, expected.top_ids)
    np.testing.assert_allclose(found.top, expected.top, atol=1e-5)


def test_rows_may_each_have_a_temperature():
    logits = (4 * RNG.standard_normal((3, 300))).astype(np.float32)
    ids = np.array([7, 8, 9], np.int32)
    temperatures = np.array([0.5, 1, 1e-5], np.float32)

    found = Logprobs(300)(logits, ids, 4, temperatures)

    tempered = (logits - logits.max(-1, keepdims=True)).astype(np.float64) / temperatures[:, None]
    expected = top_logprobs(tempered, ids, 4)
    np.testing.assert_allclose(found.chosen, expected.chosen, rtol=1e-6, atol=1e-5)
    np.testing.assert_array_equal(found.ranks, expected.rank)
    np.testing.assert_array_equal(found.top_ids, expected.top_ids)
    np.testing.assert_allclose(found.top, expected.top, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_of_equal_logits_the_smaller_ids_come_first(levels):
    logits = RNG.integers(0, levels, (40, 300)).astype(np.float32)
    ids = RNG.integers(0, 300, 40).astype(np.int32)

    found = Logprobs(300)(logits, ids, 7)

    expected = top_logprobs(logits.astype(np.float64), ids, 7)
    np.testing.assert_array_equal(found.ranks, expected.rank)
    np.testing.assert_array_equal(found.top_ids, expected.top_ids)


def test_tokens_that_are_ruled_out_have_no_probability():
    logits = np.full((1, 300), -np.inf, np.float32)
    logits[0, [7, 290]] = 1.0, 2.0

    found = Logprobs(300)(logits, np.array([290], np.int32), 3)

    assert found.ranks.tolist() == [1]
    assert found.top_ids.tolist() == [[290, 7, 0]]
    np.testing.assert_allclose(found.top[0], [-0.3133, -1.3133, -np.inf], atol=1e-4)


def test_a_row_of_nan_says_so_and_disturbs_no_other():
    logits = RNG.standard_normal((3, 50)).astype(np.float32)
    logits[1, 4] = np.nan
    ids = np.array([1, 2, 3], np.int32)

    found = Logprobs(50)(logits, ids, 2)

    assert np.isnan(found.chosen).tolist() == [False, True, False]
    assert np.isnan(found.top).all(-1).tolist() == [False, True, False]
    alone = Logprobs(50)(logits[2:], ids[2:], 2)
    assert found.chosen[2] == alone.chosen[0]


def test_rows_may_be_parts_of_longer_ones():
    whole = RNG.standard_normal((4, 100)).astype(np.float32)
    ids = np.array([5, 6, 7, 8], np.int32)

    parts, copies = (Logprobs(60)(each, ids, 3) for each in (whole[:, :60], whole[:, :60].copy()))

    for part, copy in zip(parts, copies, strict=True):
        np.testing.assert_array_equal(part, copy)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"ids": np.array([10], np.int32)}, SizeError),
        ({"ids": np.array([-1], np.int32)}, SizeError),
        ({"ids": np.array([1])}, DTypeError),
        ({"num_top": 11}, SizeError),
        ({"logits": np.zeros((2, 10), np.float32)}, ShapeError),
        ({"logits": np.zeros((1, 10))}, DTypeError),
        ({"temperatures": np.ones(2, np.float32)}, ShapeError),
        ({"temperatures": np.ones(1)}, DTypeError),
    ],
)
def test_what_would_be_read_beyond_memory_is_refused(change, error):
    asked = {
        "logits": np.zeros((1, 10), np.float32), "ids": np.array([1], np.int32), "num_top": 2
    } | change  # fmt: skip

    with pytest.raises(error):
        Logprobs(10)(**asked)
