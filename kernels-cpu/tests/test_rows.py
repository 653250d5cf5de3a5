"""Norms and activations of rows against their definitions in float64, shared out in parts."""

import ml_dtypes
import numpy as np
import pytest
import spaninfer_op_reference as op_reference
from numba import njit
from spaninfer_kernels_cpu import rows_kernel as kernel
from spaninfer_kernels_cpu.elements import BFLOAT16, FLOAT32

EPS = 1e-5
SIZES = [(0, 8), (1, 1), (1, 896), (3, 17), (5, 64), (7, 1031)]
KINDS = {FLOAT32: (np.float32, 2e-6), BFLOAT16: (ml_dtypes.bfloat16, 2**-8)}


@pytest.fixture(scope="module", params=KINDS, ids=lambda element: element.name)
def kernels(request):
    """Norms of one kind of activations, over all parts one after the other."""
    act = request.param

    @njit
    def rms(parts, x, added, weight, out, rows, channels, plus_one):
        for part in range(parts):
            kernel.rms_norm(
                act, part, parts, x, added, weight, out, rows, channels, np.float32(EPS), plus_one
            )

    @njit
    def layer(parts, x, added, weight, bias, out, rows, channels):
        for part in range(parts):
            kernel.layer_norm(
                act, part, parts, x, added, weight, bias, out, rows, channels, np.float32(EPS)
            )

    return rms, layer, *KINDS[act]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("plus_one", [False, True])
def test_rms_norm_adds_rounds_and_normalises(kernels, size, plus_one):
    rms, _, dtype, error = kernels
    x, added, weight, _, out = problem(size, dtype)
    total = (x.astype(np.float32) + added).astype(dtype)

    rms(3, *addresses(x, added, weight, out), *size, plus_one)

    np.testing.assert_array_equal(x, total)
    expected = op_reference.rms_norm(total.astype(float), weight.astype(float), EPS, plus_one)
    np.testing.assert_allclose(out.astype(float), expected, rtol=error, atol=error)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_layer_norm_adds_rounds_and_normalises(kernels, size):
    _, layer, dtype, error = kernels
    x, added, weight, bias, out = problem(size, dtype)
    x += np.array(100, dtype)  # far from 0, where a difference of large sums would show
    total = (x.astype(np.float32) + added).astype(dtype)

    layer(2, *addresses(x, added, weight, bias, out), *size)

    np.testing.assert_array_equal(x, total)
    numbers = (total.astype(float), weight.astype(float), bias.astype(float))
    expected = op_reference.layer_norm(*numbers, EPS)
    np.testing.assert_allclose(out.astype(float), expected, rtol=2 * error, atol=20 * error)


def test_nothing_is_added_and_nothing_written_where_no_address_says_so(kernels):
    rms, layer, dtype, error = kernels
    x, added, weight, _, out = problem((2, 40), dtype)
    before = x.copy()
    at = addresses(x, added, weight, out)

    rms(1, at[0], 0, *at[2:], 2, 40, False)
    np.testing.assert_array_equal(x, before)
    expected = op_reference.rms_norm(before.astype(float), weight.astype(float), EPS)
    np.testing.assert_allclose(out.astype(float), expected, rtol=error, atol=error)

    layer(1, at[0], 0, at[2], 0, at[3], 2, 40)
    expected = op_reference.layer_norm(before.astype(float), weight.astype(float), None, EPS)
    np.testing.assert_allclose(out.astype(float), expected, rtol=error, atol=2 * error)

    rms(1, at[0], at[1], at[2], 0, 2, 40, False)
    np.testing.assert_array_equal(x, (before.astype(np.float32) + added).astype(dtype))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "silu" else [pytest.mark.slow])
        for name in kernel.ACTIVATIONS
    ],
)
def test_activations_plain_and_gated_are_the_definitions(name):
    activation = kernel.ACTIVATIONS[name]

    @njit
    def gate(parts, gate_up, out, rows, inner):
        for part in range(parts):
            kernel.gate(FLOAT32, activation, part, parts, gate_up, out, rows, inner)

    @njit
    def activate(parts, x, out, count):
        for part in range(parts):
            kernel.activate(BFLOAT16, activation, part, parts, x, out, count)

    for rows, inner in [(0, 4), (1, 1), (1, 4864), (3, 17), (4, 64)]:
        gate_up = (6 * np.random.default_rng(0).standard_normal((rows, 2 * inner))).astype("f4")
        gate_up[:, :3] = [[-np.inf, 0, 200]][: gate_up.shape[1]] if inner > 2 else 0
        out = np.full((rows, inner), np.nan, np.float32)
        gate(5, *addresses(gate_up, out), rows, inner)
        gates, ups = np.split(gate_up.astype(float), 2, axis=1)
        with np.errstate(invalid="ignore"):
            expected = op_reference.gated(gates, ups, name)
        finite = np.isfinite(expected)
        scale = np.abs(ups) * np.maximum(1, np.abs(gates))
        assert (np.abs(out - expected) <= 4e-7 * scale + 1e-30)[finite].all()

        half = np.full(gate_up.shape, np.nan, ml_dtypes.bfloat16)
        activate(3, *addresses(gate_up, half), half.size)
        with np.errstate(invalid="ignore"):
            expected = op_reference.ACTIVATIONS[name](gate_up.astype(float))
        finite = np.isfinite(expected)
        close = np.isclose(half.astype(float), expected, rtol=2**-8, atol=2e-6)
        assert close[finite].all()


def test_bfloat16_is_rounded_to_the_nearest_and_keeps_nan():
    @njit
    def convert(x, out, count):
        kernel.activate(BFLOAT16, kernel.RELU, 0, 1, x, out, count)

    bits = np.random.default_rng(1).integers(0, 2**31, 4096, dtype=np.uint32)
    bits[:4] = 0x7F800001, 0x7FFFFFFF, 0x7F800000, 0x3F808000  # NaN twice, inf, a tie
    x, out = bits.view(np.float32), np.empty(4096, ml_dtypes.bfloat16)

    convert(*addresses(x, out), 4096)

    with np.errstate(invalid="ignore", over="ignore"):
        expected = x.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(out.astype(float), expected.astype(float))


def problem(size, dtype):
    """x, what is added to it, weight, bias, and a poisoned output."""
    rng = np.random.default_rng(size[1])
    x, added = (rng.standard_normal(size).astype(np.float32) for _ in range(2))
    weight, bias = (rng.standard_normal(size[1]).astype(np.float32) for _ in range(2))
    return x.astype(dtype), added, weight, bias, np.full(size, np.nan, dtype)


def addresses(*arrays):
    return [array.ctypes.data for array in arrays]
