"""Products as calls of a script: of rows that lie anywhere, added to others or not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from spaninfer_kernels_cpu import Format, linear, pack, unpack
from spaninfer_kernels_cpu.call import Rows, Script
from spaninfer_kernels_cpu.product_call import product_calls, scratch_bytes
from spaninfer_kernels_cpu.recipe import recipes
from spaninfer_kernels_cpu.team import shared_team
from spaninfer_kernels_cpu.tiers import chosen

RNG = np.random.default_rng(0)
FORMATS = [
    Format("float32"),
    Format("bfloat16"),
    *(Format(kind, group) for kind in ("int8", "int4") for group in (None, 32)),
]


def _rows(array: NDArray[np.float32]) -> Rows:
    return Rows(array.ctypes.data, array.strides[0])


def _floats(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape, np.float32)


@pytest.mark.parametrize("rows", [1, 7, 200])
@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("channels", [130, 129])
def test_a_script_multiplies_like_linear(format: Format, rows: int, channels: int) -> None:
    weight, bias, x = pack(_floats(75, channels), format), _floats(75), _floats(rows, channels)
    expected = np.empty((rows, 75), np.float32)
    linear(x, weight, out=expected, bias=bias)
    among = np.full((rows, channels + 9), np.nan, np.float32)
    among[:, 4:-5] = x
    out = np.full((rows, 80), np.nan, np.float32)
    scratch = np.empty(rows * scratch_bytes(weight.layout) + 1, np.uint8)

    calls = product_calls(
        _rows(among[:, 4:]), weight, out=_rows(out), scratch=scratch.ctypes.data, bias=bias
    )
    shared_team().run(Script(calls), [rows])

    np.testing.assert_array_equal(out[:, :75], expected)
    assert np.isnan(out[:, 75:]).all()


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_a_product_is_added_to_rows_times_a_scale(format: Format) -> None:
    weight, x, residual = pack(_floats(70, 64), format), _floats(5, 64), _floats(5, 70)
    expected = np.empty((5, 70), np.float32)
    linear(x, weight, out=expected)
    out = residual.copy()
    scratch = np.empty(5 * scratch_bytes(weight.layout) + 1, np.uint8)

    calls = product_calls(
        _rows(x),
        weight,
        out=_rows(out),
        scratch=scratch.ctypes.data,
        residual=_rows(out),
        scale=0.25,
        wanted=True,
    )
    shared_team().run(Script(calls), [9, 5])

    np.testing.assert_allclose(out, residual + 0.25 * expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("channels", [64, 63])
def test_activations_are_rounded_where_the_cpu_multiplies_bfloat16(channels: int) -> None:
    weight, x = pack(_floats(70, channels), Format("bfloat16")), _floats(5, channels)
    out = np.empty((5, 70), np.float32)
    scratch = np.empty(5 * scratch_bytes(weight.layout, rounded=True) + 1, np.uint8)

    calls = product_calls(
        _rows(x), weight, out=_rows(out), scratch=scratch.ctypes.data, rounded=True
    )
    shared_team().run(Script(calls), [5])

    one, _ = recipes("bfloat16", rounded=True, tier=chosen())
    seen = x.astype(ml_dtypes.bfloat16) if one.way == "bf16_dot" else x
    expected = seen.astype(np.float64) @ unpack(weight).T.astype(np.float64)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
