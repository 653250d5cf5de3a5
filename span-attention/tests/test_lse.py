"""Checks of output arrays, with and without log-sum-exps, before a launch."""

import numpy as np
import pytest
from span_attention.lse import pair_of, results_of
from spaninfer_kernel_launch import ShapeError


def test_results_are_one_or_with_log_sum_exps_two():
    out = ("out", (3, 4, 8), "float16", 8)

    assert results_of((3, 4, 8), "float16", alignment=8, lse=False) == (out,)
    assert results_of((3, 4, 8), "float16", alignment=8, lse=True) == (
        out,
        ("lse", (3, 4), np.float32, 1),
    )


def test_what_is_given_for_two_results_is_a_pair():
    out, lse = np.zeros((3, 4, 8)), np.zeros((3, 4))

    assert pair_of(None) == (None, None)
    assert pair_of((out, lse)) == (out, lse)
    with pytest.raises(ShapeError, match="out is no pair; with lse=True"):
        pair_of(out)
