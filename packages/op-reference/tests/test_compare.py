import math

import numpy as np
import pytest
from spaninfer_op_reference import close, linear, relative_error, to_bfloat16, tolerance

RNG = np.random.default_rng(0)


def test_a_long_gemm_in_float32_is_close_and_one_wrong_row_is_not():
    x, weight = RNG.normal(size=(3, 4096)), RNG.normal(size=(64, 4096))
    truth = linear(x, weight)

    y = linear(x.astype(np.float32), weight.astype(np.float32))

    assert close(y, truth, "float32")
    y[1, 5] *= 1.001
    assert not close(y, truth, "float32")


@pytest.mark.parametrize(("dtype", "rounded"), [("float16", np.float16), ("bfloat16", None)])
def test_gemms_of_rounded_inputs_are_close_in_16_bits_and_not_in_float32(dtype, rounded):
    def narrow(a):
        return to_bfloat16(a) if rounded is None else a.astype(rounded).astype(np.float32)

    x, weight = RNG.normal(size=(3, 1024)), RNG.normal(size=(64, 1024))

    y = narrow(linear(narrow(x), narrow(weight)))

    assert close(y, linear(x, weight), dtype)
    assert not close(y, linear(x, weight), "float32")


def test_errors_are_measured_against_the_size_of_the_whole():
    expected = np.array([3.0, -4.0, 0.0, 0.0])

    assert relative_error(np.array([3.0, -4.0, 0.25, 0.0]), expected) == 0.1
    assert relative_error(np.array([1e-3]), np.zeros(1)) == 1e-3
    assert relative_error(np.zeros((0, 2)), np.zeros((0, 2))) == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_is_never_close(bad):
    good, broken = np.array([1.0, 2.0]), np.array([1.0, bad])

    assert relative_error(broken, good) == math.inf
    assert not close(broken, broken, "bfloat16")


def test_other_shapes_and_unknown_formats_are_refused():
    with pytest.raises(ValueError, match=r"\(2,\), but \(1, 2\)"):
        relative_error(np.zeros(2), np.zeros((1, 2)))
    with pytest.raises(ValueError, match="'float8'"):
        tolerance("float8")
