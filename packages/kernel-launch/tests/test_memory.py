"""Results in stream-ordered memory, as frameworks take them."""

import ml_dtypes
import numpy as np
import pytest
from spaninfer_kernel_launch import (
    Array,
    Device,
    DeviceError,
    DTypeError,
    OutOfMemory,
    ShapeError,
    get_gpu,
    new_stream,
    result_array,
    view_of,
)

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


def test_a_result_is_a_new_array_or_the_callers_own(stream):
    gpu = get_gpu()
    own = Array((3, 4), np.float32, gpu, stream)

    made = result_array(None, (3, 4), np.float32, gpu, stream)
    given = result_array(own, (3, 4), np.float32, gpu, stream, alignment=16)

    assert (made.shape, made.dtype) == ((3, 4), np.float32)
    assert given is own


@pytest.mark.parametrize(
    ("shape", "dtype", "alignment", "error", "message"),
    [
        (
            (4, 3),
            np.float32,
            1,
            ShapeError,
            r"sums has shape \(3, 4\), but the result has \(4, 3\)",
        ),
        ((3, 4), np.float16, 1, DTypeError, "sums holds float32, but the kernel needs float16"),
        ((3, 4), np.float32, 2**40, ShapeError, "sums must begin at a multiple of 1099511627776"),
    ],
)
def test_an_array_that_cannot_hold_the_result_is_refused(
    stream, shape, dtype, alignment, error, message
):
    own = Array((3, 4), np.float32, get_gpu(), stream)

    with pytest.raises(error, match=message):
        result_array(own, shape, dtype, get_gpu(), stream, name="sums", alignment=alignment)


def test_a_result_in_host_memory_is_refused(stream):
    with pytest.raises(DeviceError, match="out lies on cpu, but the arguments lie on cuda:0"):
        result_array(np.zeros(3), (3,), np.float64, get_gpu(), stream)
