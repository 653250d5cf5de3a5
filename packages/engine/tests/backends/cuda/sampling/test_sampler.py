"""Results of the GPU sampler on the host, without a GPU."""

import numpy as np
import pytest

pytest.importorskip("torch")

from spaninfer_engine.backends.cuda.sampling.sampler import Sampled, logprobs_of
from spaninfer_engine.request.request import MAX_LOGPROBS


@pytest.mark.parametrize("count", [0, 1, MAX_LOGPROBS])
def test_reports_are_read_as_they_lie(count):
    rows = 3
    chosen, ranks = np.array([-0.5, -1.5, -2.5], np.float32), np.array([1, 2, 3], np.int32)
    top_ids = np.arange(rows * count, dtype=np.int32).reshape(rows, count)
    top = -top_ids.astype(np.float32) / 7

    reports = logprobs_of(_words(chosen, ranks, top_ids, top), count)

    for got, expected in zip(reports, (chosen, ranks, top_ids, top), strict=True):
        np.testing.assert_array_equal(got, expected)
        assert got.dtype == expected.dtype


@pytest.mark.parametrize("count", [0, 2, MAX_LOGPROBS])
def test_log_probabilities_of_rows_outlive_the_memory_that_they_arrived_in(count):
    rng = np.random.default_rng(count)
    rows, shape = 5, (5, MAX_LOGPROBS)
    chosen, top = -rng.random(rows, np.float32), -rng.random(shape, np.float32)
    ranks, top_ids = (rng.integers(9000, size=of).astype(np.int32) for of in (rows, shape))
    words = np.r_[np.zeros(2 * rows, np.int32), _words(chosen, ranks, top_ids, top)]

    found = Sampled(words, rows, arrived=None).logprobs((4, 0, 3), count)
    words[:] = -1
    reports = found()

    np.testing.assert_array_equal(reports.chosen, chosen[[4, 0, 3]])
    np.testing.assert_array_equal(reports.ranks, ranks[[4, 0, 3]])
    np.testing.assert_array_equal(reports.top_ids, top_ids[[4, 0, 3], :count])
    np.testing.assert_array_equal(reports.top, top[[4, 0, 3], :count])


def _words(chosen, ranks, top_ids, top):
    """Log-probabilities as the device sends them."""
    return np.r_[chosen.view(np.int32), ranks, top_ids.ravel(), top.ravel().view(np.int32)]
