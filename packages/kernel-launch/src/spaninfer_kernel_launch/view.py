"""Views of arrays of any framework: address, shape, strides, type, device.

DLPack and the CUDA array interface are read directly, because numpy, the usual reader, knows
neither device memory nor bfloat16 nor 8-bit floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

from spaninfer_kernel_launch import dlpack
from spaninfer_kernel_launch.dlpack import dense_strides
from spaninfer_kernel_launch.errors import DTypeError, ShapeError
from spaninfer_kernel_launch.framework import dtype_of_torch, framework_of


@dataclass(frozen=True, slots=True)
class Device:
    """The memory an array lies in: `kind` is "cpu" or "cuda", `index` the number of the GPU."""

    kind: str
    index: int = 0

    def __str__(self) -> str:
        """Return "cpu" or "cuda:0"."""
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


@dataclass(frozen=True, slots=True)
class View:
    """An array's memory: pointer to its first element, shape, strides in elements, type, device.

    `owner` is held so that the memory outlives the view.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    device: Device
    owner: object = field(repr=False, compare=False)

    @property
    def is_contiguous(self) -> bool:
        """True if the elements are contiguous, last axis fastest."""
        return prod(self.shape) == 0 or all(
            size == 1 or stride == dense
            for size, stride, dense in zip(
                self.shape, self.strides, dense_strides(self.shape), strict=True
            )
        )


def view_of(array: object) -> View:
    """Return where `array` lies: a View, numpy array, CUDA array interface or DLPack exporter.

    No bytes are copied and no stream is synchronised. Raises DTypeError for other objects and for
    element types that have no numpy or ml_dtypes name.
    """
    if isinstance(array, View):
        return array
    if isinstance(array, np.ndarray):
        return _of_numpy(array)
    if framework_of(type(array)) == "torch":
        return view_at(_spec_of_torch(array), array.data_ptr(), array)  # type: ignore[attr-defined]
    if hasattr(array, "__dlpack__"):
        return _of_dlpack(array)
    if hasattr(array, "__cuda_array_interface__"):
        return _of_cuda_array(array)
    raise DTypeError(
        f"{type(array).__name__} is not an array: it has neither __dlpack__ nor "
        "__cuda_array_interface__"
    )


def _of_numpy(array: np.ndarray[Any, Any]) -> View:
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return View(array.ctypes.data, array.shape, strides, array.dtype, Device("cpu"), array)


def _of_cuda_array(array: Any) -> View:
    fields = array.__cuda_array_interface__
    shape, dtype = tuple(fields["shape"]), np.dtype(fields["typestr"])
    in_bytes = fields.get("strides")
    strides = (
        dense_strides(shape)
        if in_bytes is None
        else tuple(stride // dtype.itemsize for stride in in_bytes)
    )
    index = int(getattr(getattr(array, "device", None), "id", 0))
    return View(fields["data"][0], shape, strides, dtype, Device("cuda", index), array)


def _of_dlpack(array: Any) -> View:
    kind, index = array.__dlpack_device__()
    if int(kind) not in _DEVICES:
        raise DTypeError(
            f"{type(array).__name__} lies on DLPack device {int(kind)}, not CPU or CUDA"
        )
    capsule = (
        array.__dlpack__(stream=_NO_SYNCHRONISATION)
        if kind == dlpack.ON_GPU
        else array.__dlpack__()
    )
    tensor = dlpack.tensor_of(capsule)
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else dense_strides(shape)
    return View(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        strides,
        dlpack.dtype_of(tensor.dtype),
        Device(_DEVICES[int(kind)], int(index)),
        capsule,  # it holds the exporter's memory until it is collected
    )


_DEVICES = {1: "cpu", dlpack.ON_GPU: "cuda", 3: "cpu", 13: "cuda"}  # 3: pinned host; 13: managed

_NO_SYNCHRONISATION = -1


ArraySpec: TypeAlias = tuple[Any, ...]
"""Shape, strides, element type, device, and the address modulo 16: all that checks depend on.

The device of a torch tensor on a GPU is its number.
"""

ALIGNMENT: Final = 16  # bytes: the largest that a kernel requires


def inspect_array(array: Any) -> tuple[int, ArraySpec]:
    """Return the address of the first element, and the spec of an array.

    Of a torch tensor, both take half a microsecond, a tenth of its view. None has address 0 and an
    empty spec.
    """
    return _INSPECTORS.get(type(array), _inspect_first)(array)


def inspect_arrays(*arrays: Any) -> tuple[list[int], tuple[ArraySpec, ...]]:
    """Return the addresses and the specs of arrays, as `inspect_array` does, faster."""
    addresses, specs = [], []
    for array in arrays:
        if array is None:
            addresses.append(0)
            specs.append(())
            continue
        address, spec = _INSPECTORS.get(type(array), _inspect_first)(array)
        addresses.append(address)
        specs.append(spec)
    return addresses, tuple(specs)


def _inspect_first(array: Any) -> tuple[int, ArraySpec]:
    is_torch = framework_of(type(array)) == "torch"
    look = _INSPECTORS[type(array)] = _inspect_torch if is_torch else _inspect_any
    return look(array)


def _inspect_torch(x: Any) -> tuple[int, ArraySpec]:
    pointer = x.data_ptr()
    # A number is hashed and compared in a tenth of a torch.device's time.
    device = x.get_device() if x.is_cuda else x.device
    return pointer, (x.shape, x.stride(), x.dtype, device, pointer % ALIGNMENT)


def _spec_of_torch(x: Any) -> ArraySpec:
    return _inspect_torch(x)[1]


def _inspect_any(array: Any) -> tuple[int, ArraySpec]:
    view = view_of(array)
    low = view.pointer % ALIGNMENT
    return view.pointer, (view.shape, view.strides, view.dtype, view.device, low)


_INSPECTORS: dict[type, Callable[[Any], tuple[int, ArraySpec]]] = {type(None): lambda _: (0, ())}


ADDRESS: Final[ArraySpec] = ("address",)
"""The spec of an array that is given as its address alone, and cannot be checked."""


def inspect_or_addresses(*arrays: Any) -> tuple[list[int], tuple[ArraySpec, ...]]:
    """Return what `inspect_arrays` does, of arrays or addresses."""
    if int not in map(type, arrays):
        return inspect_arrays(*arrays)
    found = [(x, ADDRESS) if isinstance(x, int) else inspect_array(x) for x in arrays]
    addresses, specs = zip(*found, strict=True)
    return list(addresses), specs


def is_of_torch(spec: ArraySpec) -> bool:
    """Return whether a spec is that of a torch tensor."""
    return spec != ADDRESS and not isinstance(spec[3], Device)


def view_at(spec: ArraySpec, pointer: int | None = None, owner: object = None) -> View:
    """Return the view of arrays with this spec: at `pointer`, or at the address's last bits."""
    shape, strides, dtype, device, low = spec
    if not isinstance(device, Device):  # torch's
        dtype, device = dtype_of_torch(dtype), _device_of_torch(device)
    return View(low if pointer is None else pointer, tuple(shape), strides, dtype, device, owner)


def _device_of_torch(device: Any) -> Device:
    """Return the device of a spec: the number of a GPU, or a torch.device for anything else."""
    if isinstance(device, int):
        return Device("cuda", device)
    if device.type != "cpu":
        raise DTypeError(f"Tensor lies on device {device}, not CPU or CUDA")
    return Device("cpu")


def pointer_of(array: Any) -> int:
    """Return the address of the first element of `array`; faster than its view where it can be.

    For launches of what was checked before: an address is returned as it is, and 0 for None.
    """
    if (find := _POINTERS.get(type(array))) is not None:
        return find(array)
    if isinstance(array, int):
        return array
    if framework_of(type(array)) == "torch":
        _POINTERS[type(array)] = type(array).data_ptr
        return array.data_ptr()  # type: ignore[no-any-return]
    if isinstance(pointer := getattr(array, "pointer", None), int):  # ours
        return pointer
    if hasattr(array, "__cuda_array_interface__"):
        return int(array.__cuda_array_interface__["data"][0])
    return view_of(array).pointer


_POINTERS: dict[type, Callable[[Any], int]] = {int: int, type(None): lambda _: 0}


def check_dense(dtype: object, **arrays: View) -> None:
    """Raise DTypeError or ShapeError unless all are contiguous arrays of `dtype`."""
    wanted = np.dtype(dtype)  # type: ignore[call-overload]
    for name, array in arrays.items():
        if array.dtype != wanted:
            raise DTypeError(f"{name} holds {array.dtype}, but the kernel needs {wanted}")
        if not array.is_contiguous:
            raise ShapeError(f"{name} must be contiguous, but its strides are {array.strides}")


def check_aligned(num_bytes: int, **arrays: View) -> None:
    """Raise ShapeError unless all begin at a multiple of `num_bytes`."""
    for name, array in arrays.items():
        if array.pointer % num_bytes:
            raise ShapeError(f"{name} must begin at a multiple of {num_bytes} bytes")


def check_rows(dtype: object, num_bytes: int, **arrays: View) -> None:
    """Raise unless each array's rows are dense in `dtype` and begin at multiples of `num_bytes`.

    Rows, along the first axis, may lie apart.
    """
    for name, array in arrays.items():
        row = replace(array, shape=array.shape[1:], strides=array.strides[1:])
        check_dense(dtype, **{name: row if array.shape[0] else array})
        apart = array.strides[0] * array.dtype.itemsize if array.shape[0] > 1 else 0
        if array.pointer % num_bytes or apart % num_bytes:
            raise ShapeError(f"{name}: every row must begin at a multiple of {num_bytes} bytes")
