"""Types that kernels are compiled for."""

import ml_dtypes
import numpy as np
import pytest
from spaninfer_kernel_launch import DTypeError, element_of


def test_bfloat16_is_not_for_turing():
    assert "sm_75" in element_of(np.float16).architectures
    assert "sm_75" not in element_of(ml_dtypes.bfloat16).architectures


def test_other_types_are_refused_by_name():
    with pytest.raises(DTypeError, match="int8; there are float32, float16, bfloat16"):
        element_of(np.int8)
