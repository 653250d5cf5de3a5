"""Views of arrays of several frameworks."""

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from spaninfer_kernel_launch import (
    Device,
    DTypeError,
    ShapeError,
    View,
    check_aligned,
    check_rows,
    dlpack,
    inspect_array,
    pointer_of,
    view_at,
    view_of,
)

DTYPES = [
    *(np.int8, np.int32, np.int64, np.uint8, np.float16, np.float32, np.float64, np.bool_),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_a_numpy_array_is_seen_where_it_lies(dtype):
    array = np.zeros((4, 6, 8), dtype)[1:, ::2, ::-1]

    seen = view_of(array)

    assert seen.pointer == array.ctypes.data
    assert (seen.shape, seen.strides) == ((3, 3, 8), (48, 16, -1))
    assert (seen.dtype, seen.device) == (np.dtype(dtype), Device("cpu"))


class Exporter:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self):
        return self.array.__dlpack__()


def test_a_dlpack_array_is_seen_where_it_lies():
    array = np.arange(24, dtype=np.int16).reshape(4, 6)[1:, ::2]

    seen = view_of(Exporter(array))

    assert seen == view_of(array)


def test_where_elements_begin_may_be_told_in_two_parts():
    class Shifted(Exporter):
        def __dlpack__(self):
            capsule = super().__dlpack__()
            dlpack.tensor_of(capsule).byte_offset = 6
            return capsule

    array = np.arange(24, dtype=np.int16)

    assert view_of(Shifted(array)).pointer == array.ctypes.data + 6


@pytest.mark.usefixtures("own_garbage")
def test_the_memory_of_a_dlpack_array_outlives_the_array():
    class Watched(np.ndarray):
        pass

    array = np.zeros(1000).view(Watched)
    alive = weakref.ref(array)
    seen = view_of(Exporter(array))

    del array
    gc.collect()
    assert alive() is not None
    del seen
    gc.collect()

    assert alive() is None


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float32", np.float32),
        ("float16", np.float16),
        ("bfloat16", ml_dtypes.bfloat16),
        ("float8_e4m3fn", ml_dtypes.float8_e4m3fn),
        ("float8_e5m2", ml_dtypes.float8_e5m2),
        ("int64", np.int64),
        ("bool", np.bool_),
    ],
)
def test_a_torch_tensor_is_seen_where_it_lies(name, dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to view")
    tensor = torch.zeros(4, 6, dtype=getattr(torch, name))[1:, ::2]

    seen = view_of(tensor)

    assert seen.pointer == tensor.data_ptr()
    assert (seen.shape, seen.strides) == ((3, 3), (6, 2))
    assert seen.dtype == np.dtype(dtype)


def test_a_key_holds_all_that_checks_depend_on():
    array = np.zeros((4, 6, 8), np.float16)[1:, ::2]

    pointer, key = inspect_array(array)

    assert pointer == array.ctypes.data
    assert key != inspect_array(array.copy())[1]
    assert view_at(key, pointer) == view_of(array)
    assert view_at(key).pointer == pointer % 16
    assert inspect_array(None) == (0, ())
    assert (pointer_of(None), pointer_of(77), pointer_of(array)) == (0, 77, pointer)


def test_a_tensor_on_a_gpu_has_the_number_of_that_gpu_in_its_key():
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to view")

    view = view_at((torch.Size((2, 3)), (3, 1), torch.float16, 1, 8))

    assert view == View(8, (2, 3), (3, 1), np.dtype(np.float16), Device("cuda", 1), None)


def test_a_tensor_has_the_key_of_its_shape_strides_type_device_and_alignment():
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to view")
    tensor = torch.zeros(4, 6, dtype=torch.bfloat16)
    others = {
        "shape": tensor[:3],
        "strides": torch.zeros(6, 4, dtype=torch.bfloat16).T,
        "dtype": tensor.half(),
        "device": tensor.to("meta"),
        "alignment": torch.zeros(25, dtype=torch.bfloat16)[1:].view(4, 6),
    }

    pointer, key = inspect_array(tensor)

    assert view_at(key, pointer) == view_of(tensor)
    assert inspect_array(torch.zeros(4, 6, dtype=torch.bfloat16))[1] == key
    for name, other in others.items():
        assert inspect_array(other)[1] != key, name
    with pytest.raises(DTypeError, match="lies on device meta, not CPU or CUDA"):
        view_of(others["device"])
    with pytest.raises(DTypeError, match=r"no kernel takes elements of type torch\.bits8"):
        view_of(torch.empty(3, dtype=torch.bits8))


def test_the_cuda_array_interface_is_read_without_touching_the_memory():
    class OnGpu:
        def __init__(self, strides):
            self.__cuda_array_interface__ = {
                "shape": (3, 4),
                "typestr": "<f2",
                "data": (0xABC000, False),
                "strides": strides,
                "version": 3,
            }

    assert view_of(OnGpu(None)) == View(
        0xABC000, (3, 4), (4, 1), np.dtype(np.float16), Device("cuda"), None
    )
    assert view_of(OnGpu((16, 2))).strides == (8, 1)


@pytest.mark.parametrize(
    ("array", "contiguous"),
    [
        (np.zeros((3, 4)), True),
        (np.zeros((3, 4)).T, False),
        (np.zeros((3, 4))[:, :2], False),
        (np.zeros((1, 4))[:, :2], True),
        (np.zeros((0, 4))[:, ::2], True),
        (np.zeros(()), True),
    ],
)
def test_contiguity_ignores_strides_that_lead_nowhere(array, contiguous):
    assert view_of(array).is_contiguous is contiguous


def test_a_view_of_a_view_is_itself():
    seen = view_of(np.zeros(3))

    assert view_of(seen) is seen


def test_what_is_no_array_is_refused_by_name():
    with pytest.raises(DTypeError, match="list is not an array"):
        view_of([1, 2, 3])
    with pytest.raises(DTypeError, match="DLPack type code 5, 64 bits"):
        view_of(Exporter(np.zeros(3, np.complex64)))


def view(*, pointer=0x1000, shape=(3, 4), strides=(4, 1), dtype=np.float32):
    return View(pointer, shape, strides, np.dtype(dtype), Device("cuda"), None)


def test_alignment_is_that_of_the_first_element():
    check_aligned(16, x=view())
    with pytest.raises(ShapeError, match="y must begin at a multiple of 16 bytes"):
        check_aligned(16, x=view(), y=view(pointer=0x1004))


@pytest.mark.parametrize(
    "rows",
    [
        view(strides=(8, 1)),
        view(shape=(1, 4), strides=(3, 1)),
        view(shape=(0, 4), strides=(0, 0)),
        view(shape=(2, 3, 4), strides=(32, 4, 1)),
    ],
)
def test_rows_may_lie_apart(rows):
    check_rows(np.float32, 16, x=rows)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (view(strides=(4, 2)), ShapeError, "x must be contiguous"),
        (view(strides=(5, 1)), ShapeError, "x: every row must begin at a multiple of 16 bytes"),
        (view(pointer=0x1008), ShapeError, "x: every row must begin at a multiple of 16 bytes"),
        (view(dtype=np.float16), DTypeError, "x holds float16, but the kernel needs float32"),
    ],
)
def test_rows_are_dense_and_begin_where_they_can_be_loaded(rows, error, message):
    with pytest.raises(error, match=message):
        check_rows(np.float32, 16, x=rows)
