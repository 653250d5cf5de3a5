"""Results of the GPU sampler on the host, without a GPU."""

import numpy as np
import pytest

pytest.importorskip("torch")

from spaninfer_engine.backends.cuda.sampling.sampler import logprobs_of
from spaninfer_engine.request.request import MAX_LOGPROBS


@pytest.mark.parametrize("count", [0, 1, MAX_LOGPROBS])
def test_reports_are_read_as_they_lie(count):
    rows = 3
    chosen, ranks = np.array([-0.5, -1.5, -2.5], np.float32), np.array([1, 2, 3], np.int32)
    top_ids = np.arange(rows * count, dtype=np.int32).reshape(rows, count)
    top = -top_ids.astype(np.float32) / 7

    parts = chosen.view(np.int32), ranks, top_ids.ravel(), top.ravel().view(np.int32)
    reports = logprobs_of(np.concatenate(parts), count)

    for got, expected in zip(reports, (chosen, ranks, top_ids, top), strict=True):
        np.testing.assert_array_equal(got, expected)
        assert got.dtype == expected.dtype
