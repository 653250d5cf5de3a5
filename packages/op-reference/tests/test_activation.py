import math

import numpy as np
import pytest
import spaninfer_op_reference
from spaninfer_op_reference import ACTIVATIONS, erf, gated, log_softmax, softcap, softmax

torch = pytest.importorskip("torch", reason="torch is the second opinion")
F = torch.nn.functional

TORCH = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
}


@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 2e-16), (np.float32, 1e-7)])
def test_erf_is_that_of_the_c_library(dtype, error):
    x = np.linspace(-7, 7, 20_001).astype(dtype)

    y = erf(x)

    truth = np.array([math.erf(number) for number in x.tolist()])
    assert y.dtype == dtype
    assert np.abs(y - truth).max() <= error


def test_erf_keeps_signs_tiny_numbers_and_what_is_no_number():
    y = erf(np.array([0.0, -0.0, 1e-300, np.inf, -np.inf, np.nan]))

    expected = [0.0, -0.0, math.erf(1e-300), 1.0, -1.0, math.nan]
    np.testing.assert_array_equal(y, expected)
    assert np.signbit(y[1])


def test_clamped_swiglu_is_that_of_gpt_oss():
    gate, up = (x.ravel() for x in np.meshgrid(np.linspace(-20, 20, 81), np.linspace(-20, 20, 81)))

    inner = gated(gate, up, "clamped_swiglu")

    opened, raised = torch.from_numpy(gate).clamp(max=7.0), torch.from_numpy(up).clamp(-7.0, 7.0)
    expected = (raised + 1) * opened * torch.sigmoid(opened * 1.702)
    np.testing.assert_allclose(inner, expected.numpy(), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_activations_are_those_of_torch(name, dtype):
    x = np.random.default_rng(0).normal(size=(7, 33), scale=4).astype(dtype)

    y = ACTIVATIONS[name](x)

    truth = TORCH[name](torch.from_numpy(x).double()).numpy()
    assert y.dtype == dtype
    rtol, atol = (1e-15, 1e-14) if dtype == np.float64 else (3e-7, 3e-6)
    np.testing.assert_allclose(y, truth, rtol=rtol, atol=atol)


def test_there_is_no_activation_that_torch_was_not_asked_about():
    assert set(ACTIVATIONS) == set(TORCH)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_public_by_their_names(name):
    assert getattr(spaninfer_op_reference, name) is ACTIVATIONS[name]
    assert name in spaninfer_op_reference.__all__


def test_silu_of_large_numbers_does_not_overflow():
    with np.errstate(all="raise"):
        y = ACTIVATIONS["silu"](np.array([-1e4, 1e4], np.float32))

    assert y.tolist() == [0.0, 1e4]


def test_a_gate_is_activated_and_its_partner_is_not():
    gate, up = np.array([-1.0, 2.0]), np.array([5.0, -3.0])

    assert gated(gate, up, "relu").tolist() == [0.0, -6.0]


def test_softcap_holds_numbers_within_the_cap_and_leaves_small_ones():
    y = softcap(np.array([-1e6, 0.001, 1e6]), 30.0)

    np.testing.assert_allclose(y, [-30.0, 0.001, 30.0], rtol=1e-8)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_softmax_and_its_logarithm_are_those_of_torch(dtype):
    x = np.random.default_rng(1).normal(size=(3, 5, 40), scale=30).astype(dtype)

    y, logs = softmax(x), log_softmax(x)

    tight = 1e-14 if dtype == np.float64 else 1e-6
    wide = torch.from_numpy(x).double()
    assert (y.dtype, logs.dtype) == (dtype, dtype)
    np.testing.assert_allclose(y, wide.softmax(-1), rtol=0, atol=tight)
    np.testing.assert_allclose(logs, wide.log_softmax(-1), rtol=tight, atol=100 * tight)
