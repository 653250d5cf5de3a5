"""Results in stream-ordered memory, as frameworks take them."""

import ml_dtypes
import numpy as np
import pytest
from spaninfer_kernel_launch import Array, Device, OutOfMemory, get_gpu, new_stream, view_of

pytestmark = pytest.mark.gpu


@pytest.fixture
def stream():
    """A stream of the first GPU."""
    with get_gpu().current(), new_stream() as handle:
        yield handle


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float16, ml_dtypes.bfloat16, np.uint8])
def test_torch_takes_it_without_a_copy(stream, dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    array = Array((3, 4), dtype, get_gpu(), stream)

    tensor = torch.from_dlpack(array)

    assert (tensor.data_ptr(), tuple(tensor.shape)) == (array.pointer, (3, 4))
    assert view_of(tensor).dtype == np.dtype(dtype)
    del array
    tensor.zero_()
    torch.cuda.synchronize()


@pytest.mark.parametrize("reader", ["from_dlpack", "asarray"])
def test_cupy_takes_it_without_a_copy(stream, reader):
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    array = Array((3, 4), np.float32, get_gpu(), stream)

    taken = getattr(cupy, reader)(array)

    assert (taken.data.ptr, taken.shape, taken.dtype) == (array.pointer, (3, 4), np.float32)


def test_it_is_seen_where_it_lies(stream):
    array = Array((3, 4), np.int32, get_gpu(), stream)

    seen = view_of(array)

    assert (seen.pointer, seen.shape, seen.device) == (array.pointer, (3, 4), Device("cuda", 0))


def test_nothing_takes_no_memory(stream):
    torch = pytest.importorskip("torch", reason="torch is not installed")

    assert torch.from_dlpack(Array((0, 4), np.float32, get_gpu(), stream)).shape == (0, 4)


def test_memory_that_is_given_back_is_taken_again(stream):
    first = Array((1 << 20,), np.uint8, get_gpu(), stream)
    pointer = first.pointer

    del first

    assert Array((1 << 20,), np.uint8, get_gpu(), stream).pointer == pointer


def test_more_than_there_is_is_refused_with_the_number(stream):
    with pytest.raises(OutOfMemory, match=f"{1 << 45} bytes for a result do not fit"):
        Array((1 << 45,), np.uint8, get_gpu(), stream)
