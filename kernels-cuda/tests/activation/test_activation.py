"""Activations against their definition; those that need no GPU come first."""

import ml_dtypes
import numpy as np
import pytest
from spaninfer_kernel_launch import DeviceError, ShapeError, captured, get_gpu, new_stream
from spaninfer_kernels_cuda import activation
from spaninfer_op_reference import ACTIVATIONS
from spaninfer_op_reference import gated as gated_by_definition
from spaninfer_op_reference.compare import UNITS

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
SIZES = [(1, 1), (3, 7), (1, 64), (1009, 96), (5, 1001), (17, 4864), (2, 18_944)]


def test_every_activation_of_the_definitions_has_a_kernel():
    assert set(activation.ACTS) == set(ACTIVATIONS)


def test_the_variant_carries_the_options_and_the_load():
    variant = activation.variant_for(
        activation.ActivationOptions("silu", gated=True), 4864, np.float16
    )

    assert str(variant) == "activate_rows[ACT=silu GATED=1 T=half THREADS=128 VECTOR=8]"


def test_activations_without_a_kernel_are_refused():
    with pytest.raises(ShapeError, match="no activation 'swish'; there are silu, gelu"):
        activation.variant_for(activation.ActivationOptions("swish"), 64, np.float16)


def test_rows_that_are_no_two_halves_are_refused():
    with pytest.raises(ShapeError, match="C is 63, but gate and up are two halves"):
        activation.gated(np.zeros((3, 63), np.float32), "silu")


def test_arrays_in_host_memory_are_refused():
    with pytest.raises(DeviceError, match="x lies in cpu memory"):
        activation.activate(np.zeros((3, 64), np.float32), "silu")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("act", activation.ACTS)
@pytest.mark.parametrize(("rows", "channels"), SIZES)
def test_activations_are_their_definition(on_gpu, dtype, act, rows, channels):
    x = numbers(rows, channels, dtype)

    y = activation.activate(on_gpu.put(x), act)

    assert near(on_gpu.get(y), ACTIVATIONS[act](wide(x)), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("act", activation.ACTS)
@pytest.mark.parametrize(("rows", "channels"), SIZES)
def test_gated_activations_are_their_definition(on_gpu, dtype, act, rows, channels):
    x = numbers(rows, 2 * channels, dtype)

    y = activation.gated(on_gpu.put(x), act)

    gate, up = np.split(wide(x), 2, axis=1)
    assert near(on_gpu.get(y), gated_by_definition(gate, up, act), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("act", activation.ACTS)
def test_extremes_go_where_the_definition_goes(on_gpu, act):
    x = np.array([[0, -0.0, 1e-30, -1e-30, 60, -60, 3e4, -3e4, 3e38, -3e38]], np.float32)

    y = on_gpu.get(activation.activate(on_gpu.put(x), act))

    with np.errstate(over="ignore"):
        expected = ACTIVATIONS[act](wide(x))
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
def test_outputs_of_the_caller_are_written_whole_and_nothing_else(on_gpu):
    x = numbers(5, 640, np.float16)
    out = on_gpu.put(np.full((7, 320), np.nan, np.float16))

    activation.gated(on_gpu.put(x), "silu", out=out[1:6])

    got, (gate, up) = on_gpu.get(out), np.split(wide(x), 2, axis=1)
    assert near(got[1:6], gated_by_definition(gate, up, "silu"), np.float16)
    assert np.isnan(got[[0, 6]]).all()


@pytest.mark.gpu
def test_no_rows_are_no_launch(on_gpu):
    y = activation.gated(on_gpu.put(np.zeros((0, 64), np.float16)), "silu")

    assert on_gpu.get(y).shape == (0, 32)


@pytest.mark.gpu
def test_arrays_that_begin_in_the_middle_of_a_load_are_refused(on_gpu):
    x = on_gpu.put(np.zeros(65, np.float16))[1:].reshape(1, 64)

    with pytest.raises(ShapeError, match="x must begin at a multiple of 16 bytes"):
        activation.activate(x, "silu")


@pytest.mark.gpu
def test_prepared_and_captured_it_runs_on_whatever_the_input_then_holds(on_gpu):
    gpu, options = get_gpu(), activation.ActivationOptions("silu", gated=True)
    step = activation.prepare(options, rows=9, channels=640, dtype=np.float16, gpu=gpu)
    given = on_gpu.put(np.zeros((9, 1280), np.float16))
    out = on_gpu.put(np.zeros((9, 640), np.float16))

    def launch(stream, _):
        step.launch(given, out=out, stream=stream)

    with gpu.current(), new_stream() as stream, captured(stream, launch) as replay:
        for seed in range(3):
            x = numbers(9, 1280, np.float16, seed)
            given[:] = on_gpu.put(x)
            on_gpu.wait()
            replay()
            on_gpu.wait()

            gate, up = np.split(wide(x), 2, axis=1)
            assert near(on_gpu.get(out), gated_by_definition(gate, up, "silu"), np.float16)


def numbers(rows, channels, dtype, seed=0):
    return (3 * np.random.default_rng(seed).standard_normal((rows, channels))).astype(dtype)


def wide(array):
    return array.astype(np.float64)


def near(actual, expected, dtype):
    """Is each number as near as rounding allows? A norm would not do: products have long tails."""
    unit = max(UNITS[np.dtype(dtype).name], 1e-6)
    return (np.abs(wide(actual) - expected) <= 1.01 * unit * np.abs(expected) + 1e-5).all()
