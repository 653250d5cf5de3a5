"""exp, exp2 and tanh against numpy in float64."""

import numpy as np
import pytest
from numba import njit
from spaninfer_kernels_cpu.codegen.exponential import coarse_exp2, exp, exp2, tanh


@pytest.fixture(scope="module")
def mapped():
    """The functions over whole arrays, so that the vector code is what is tested."""

    def over(function):
        @njit
        def run(x, out):
            for i in range(len(x)):
                out[i] = function(x[i])

        def call(x):
            out = np.full_like(x, np.nan)
            run(x, out)
            return out

        return call

    return {each.__name__: over(each) for each in (exp, exp2, coarse_exp2, tanh)}


def units(result, truth):
    """The error in units of the last place of a float32."""
    return np.abs(result - truth) / np.spacing(np.abs(truth).astype(np.float32))


def test_exp_is_within_one_unit_over_its_whole_range(mapped):
    x = np.linspace(-87, 88, 300_001).astype(np.float32)

    result = mapped["exp"](x)

    assert units(result, np.exp(x.astype(np.float64))).max() < 1


def test_exp_moves_what_is_outside_to_the_nearer_end_and_keeps_nan(mapped):
    x = np.array([-np.inf, -1e30, np.inf, np.nan, 0], np.float32)

    result = mapped["exp"](x)

    np.testing.assert_array_equal(result[:2], mapped["exp"](np.full(2, -87, np.float32)))
    np.testing.assert_array_equal(result[2:3], mapped["exp"](np.full(1, 88, np.float32)))
    assert np.isnan(result[3])
    assert result[4] == 1


def test_exp2_is_within_three_units_over_its_whole_range(mapped):
    x = np.linspace(-126, 127, 300_001).astype(np.float32)

    result = mapped["exp2"](x)

    assert units(result, np.exp2(x.astype(np.float64))).max() < 3
    assert np.isnan(mapped["exp2"](np.array([np.nan], np.float32))[0])


def test_coarse_exp2_is_within_eight_hundred_thousandths_over_its_whole_range(mapped):
    x = np.linspace(-125, 127, 300_001).astype(np.float32)

    result = mapped["coarse_exp2"](x)

    truth = np.exp2(x.astype(np.float64))
    assert np.abs(result / truth - 1).max() < 8e-5


def test_tanh_is_within_three_units_over_its_whole_range(mapped):
    x = np.concatenate([np.linspace(-12, 12, 200_001), np.geomspace(1e-30, 1, 10_001)])
    x = x.astype(np.float32)

    result = mapped["tanh"](x)

    truth = np.tanh(x.astype(np.float64))
    assert units(result, truth).max() < 3


def test_tanh_is_odd_and_saturates(mapped):
    x = np.array([-np.inf, -50, 0, 50, np.inf], np.float32)

    assert mapped["tanh"](x).tolist() == [-1, -1, 0, 1, 1]
    assert np.isnan(mapped["tanh"](np.array([np.nan], np.float32))[0])
