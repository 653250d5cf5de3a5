"""Merge against its definition; the tests that need no GPU come first."""

import ml_dtypes
import numpy as np
import pytest
from span_attention import merge
from spaninfer_kernel_launch import DeviceError, DTypeError, Launch, ShapeError
from spaninfer_op_reference import merge as definition
from spaninfer_op_reference import relative_error, tolerance


@pytest.mark.parametrize(("heads", "grid"), [(1, 1), (4, 1), (5, 2), (2800, 700)])
def test_every_head_of_every_row_has_a_warp(heads, grid):
    assert merge.launch(heads) == Launch((grid, 1, 1), (32, 4, 1), overlaps=True)


def test_no_rows_have_no_grid():
    assert merge.launch(0) is None


@pytest.mark.parametrize(("size", "itemsize", "loaded"), [(128, 2, 8), (128, 4, 4), (7, 2, 1)])
def test_loads_divide_a_head(size, itemsize, loaded):
    assert merge.vector(size, itemsize) == loaded


def test_arguments_that_do_not_fit_are_named():
    outputs, lse = np.zeros((2, 3, 4, 64), np.float16), np.zeros((2, 3, 4), np.float32)

    with pytest.raises(ShapeError, match="lse: H is 3, but outputs has H = 4"):
        merge.merge(outputs, lse[..., :3])
    with pytest.raises(DTypeError, match="lse holds float64, but the kernel needs float32"):
        merge.merge(outputs, lse.astype(np.float64))
    with pytest.raises(ShapeError, match="outputs must begin at a multiple of 16 bytes"):
        merge.merge(np.zeros(outputs.size + 1, np.float16)[1:].reshape(outputs.shape), lse)
    with pytest.raises(DeviceError, match="outputs lies in cpu memory"):
        merge.merge(outputs, lse)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1, 64), (2, 3, 7, 96), (37, 5, 4, 128), (3, 0, 4, 64)])
def test_results_are_their_definition(on_gpu, shape, dtype):
    draw = np.random.default_rng(0)
    outputs = draw.standard_normal(shape).astype(dtype)
    lse = (draw.standard_normal(shape[:3]) * 8).astype(np.float32)
    lse[0, :, ::2] = -np.inf  # this part saw no key
    lse[:, :1, :1] = -np.inf  # nor did any other

    merged, total = map(on_gpu.get, merge.merge(on_gpu.put(outputs), on_gpu.put(lse)))

    expected, expected_total = definition(outputs.astype(np.float64), lse.astype(np.float64))
    assert relative_error(merged.astype(np.float64), expected) <= tolerance(np.dtype(dtype).name)
    seen = np.isfinite(expected_total)
    assert (np.isneginf(total) == ~seen).all()
    np.testing.assert_allclose(total[seen], expected_total[seen], rtol=1e-5, atol=1e-5)
