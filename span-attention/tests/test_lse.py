"""What is checked of log-sum-exps before anything is launched."""

import numpy as np
import pytest
from span_attention.lse import check_lse, result_arrays
from spaninfer_kernel_launch import Gpu, ShapeError

GPU = Gpu(0, "none", "sm_90a", sm_count=132, shared_bytes=0, l2_bytes=0, context=0)


def test_an_lse_that_is_written_and_given_passes():
    check_lse(np.zeros((3, 4), np.float32), True)
    check_lse(1024, True)
    check_lse(0, False)


@pytest.mark.parametrize("lse", [1024, np.zeros((3, 4), np.float32)], ids=["address", "array"])
def test_an_lse_that_the_kernel_does_not_write_is_refused(lse):
    with pytest.raises(ShapeError, match=r"prepare it with Form\(…, lse=True\)"):
        check_lse(lse, False)


def test_an_lse_that_is_missing_is_refused():
    with pytest.raises(ShapeError, match="lse is missing"):
        check_lse(0, True)


def test_one_array_is_no_place_for_two_results():
    with pytest.raises(ShapeError, match="out is no pair; with lse=True"):
        result_arrays(np.zeros((3, 4, 8)), (3, 4, 8), "float16", GPU, 0, alignment=8, lse=True)
