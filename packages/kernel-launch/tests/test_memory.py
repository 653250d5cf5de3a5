"""Results in stream-ordered memory, as frameworks import them."""

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
    allocator,
    check_results,
    get_gpu,
    inspect_array,
    new_stream,
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


def test_results_for_a_tensor_are_tensors_and_else_arrays(stream):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    gpu, results = get_gpu(), (("a", (3, 4), np.float16, 1), ("b", (2,), ml_dtypes.bfloat16, 1))
    keys = [
        inspect_array(x)[1]
        for x in (torch.zeros(1, device="cuda"), Array((1,), np.int8, gpu, stream))
    ]

    tensors, arrays = (allocator(key, gpu, *results)(stream) for key in keys)

    assert [type(each) for each in (*tensors, *arrays)] == [torch.Tensor] * 2 + [Array] * 2
    assert [tuple(each.shape) for each in (*tensors, *arrays)] == [(3, 4), (2,)] * 2
    assert [each.dtype for each in tensors] == [torch.float16, torch.bfloat16]


def test_results_on_another_stream_come_from_that_streams_memory(stream):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    allocate = allocator(inspect_array(torch.zeros(1, device="cuda"))[1], get_gpu(), RESULT)
    (first,) = allocate(torch.cuda.current_stream().cuda_stream)
    pointer = first.data_ptr()

    del first
    (other,) = allocate(stream)

    assert other.data_ptr() != pointer  # work on it may still be under way there


RESULT = ("sums", (3, 4), np.float32, 1)


def test_an_array_that_can_hold_the_result_passes(stream):
    own = Array((3, 4), np.float32, get_gpu(), stream)

    check_results((inspect_array(own)[1],), get_gpu(), RESULT)
    check_results(((),), get_gpu(), RESULT)


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "message"),
    [
        ((4, 3), np.float32, ShapeError, r"sums has shape \(3, 4\), but the result has \(4, 3\)"),
        ((3, 4), np.float16, DTypeError, "sums holds float32, but the kernel needs float16"),
    ],
)
def test_an_array_that_cannot_hold_the_result_is_refused(stream, shape, dtype, error, message):
    own = Array((3, 4), np.float32, get_gpu(), stream)

    with pytest.raises(error, match=message):
        check_results((inspect_array(own)[1],), get_gpu(), ("sums", shape, dtype, 1))


def test_some_of_several_results_are_refused(stream):
    own = Array((3, 4), np.float32, get_gpu(), stream)

    with pytest.raises(ShapeError, match="out lacks scales; give an array for every result, or"):
        check_results(
            (inspect_array(own)[1], ()), get_gpu(), RESULT, ("scales", (3,), np.float32, 1)
        )


def test_a_result_in_host_memory_is_refused():
    _, key = inspect_array(np.zeros(3))

    with pytest.raises(DeviceError, match="out lies on cpu, but the arguments lie on cuda:0"):
        check_results((key,), get_gpu(), ("out", (3,), np.float64, 1))
