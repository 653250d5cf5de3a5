"""Embedding lookups against numpy's; those that need no GPU come first."""

import ml_dtypes
import numpy as np
import pytest
from spaninfer_kernel_launch import DeviceError, DTypeError, ShapeError
from spaninfer_kernels_cuda import embedding

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def test_the_variant_carries_the_division_of_a_row():
    variant = embedding.variant_for(896, np.float16)

    assert str(variant) == "embed_rows[PACKS=1 T=half THREADS=128 VECTOR=8]"


def test_arrays_in_host_memory_are_refused():
    with pytest.raises(DeviceError, match="table lies in cpu memory"):
        embedding.embed(np.zeros((3, 64), np.float32), np.zeros(2, np.int32))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("scale", [1.0, 59.8662])
@pytest.mark.parametrize(
    ("rows", "vocab", "channels"), [(1, 1, 1), (7, 40, 896), (300, 9, 1001), (33, 70, 16_384)]
)
def test_rows_are_those_of_the_table(on_gpu, dtype, scale, rows, vocab, channels):
    random = np.random.default_rng(rows)
    table = random.standard_normal((vocab, channels)).astype(dtype)
    ids = random.integers(vocab, size=rows, dtype=np.int32)

    y = on_gpu.get(embedding.embed(on_gpu.put(table), on_gpu.put(ids), scale=scale))

    rounded = np.float32(np.dtype(dtype).type(scale))
    expected = (table[ids].astype(np.float32) * rounded).astype(dtype)
    np.testing.assert_array_equal(y.view(np.uint8), expected.view(np.uint8))


@pytest.mark.gpu
def test_ids_outside_of_the_table_give_nan_and_read_nothing(on_gpu):
    table = on_gpu.put(np.ones((5, 64), np.float16))
    ids = np.array([4, 5, -1, 0, 2**31 - 1, -(2**31)], np.int32)

    y = on_gpu.get(embedding.embed(table, on_gpu.put(ids)))

    assert (y[[0, 3]] == 1).all()
    assert np.isnan(y[[1, 2, 4, 5]]).all()


@pytest.mark.gpu
def test_no_ids_are_no_launch_and_outputs_of_the_caller_are_written_whole(on_gpu):
    table = on_gpu.put(np.ones((5, 64), np.float16))
    out = on_gpu.put(np.full((4, 64), np.nan, np.float16))

    none = embedding.embed(table, on_gpu.put(np.zeros(0, np.int32)))
    embedding.embed(table, on_gpu.put(np.arange(2, dtype=np.int32)), out=out[1:3])

    got = on_gpu.get(out)
    assert on_gpu.get(none).shape == (0, 64)
    assert (got[1:3] == 1).all()
    assert np.isnan(got[[0, 3]]).all()


@pytest.mark.gpu
def test_ids_of_64_bits_and_tables_that_begin_in_the_middle_of_a_load_are_refused(on_gpu):
    table, ids = np.zeros((2, 64), np.float16), np.zeros(3, np.int64)

    with pytest.raises(DTypeError, match="ids holds int64, but the kernel needs int32"):
        embedding.embed(on_gpu.put(table), on_gpu.put(ids))

    shifted = on_gpu.put(np.zeros(129, np.float16))[1:].reshape(2, 64)
    ids_32 = on_gpu.put(ids.astype(np.int32))
    with pytest.raises(ShapeError, match="table must begin at a multiple of 16 bytes"):
        embedding.embed(shifted, ids_32)
