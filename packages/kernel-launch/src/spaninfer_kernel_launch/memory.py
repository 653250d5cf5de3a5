"""GPU memory for results: taken and given back in a stream's order, readable by any framework."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

from spaninfer_kernel_launch import dlpack
from spaninfer_kernel_launch.driver import ask, driver
from spaninfer_kernel_launch.errors import DeviceError, DriverError, OutOfMemory, ShapeError
from spaninfer_kernel_launch.gpu import Gpu
from spaninfer_kernel_launch.view import check_aligned, check_dense, view_of


class Array:
    """A contiguous array on a GPU that torch.from_dlpack and cupy.from_dlpack take without a copy.

    Its memory is given back on the stream that used it last, when neither it nor anything made
    from it is referred to any more: that stream must still exist then. cupy also reads the CUDA
    array interface, which knows neither bfloat16 nor 8-bit floats.
    """

    def __init__(self, shape: tuple[int, ...], dtype: object, gpu: Gpu, stream: int) -> None:
        self.shape = shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]
        self.gpu = gpu
        self._memory = Memory(prod(shape) * self.dtype.itemsize, gpu, stream)

    @property
    def pointer(self) -> int:
        """Address of the first element."""
        return self._memory.pointer

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.ON_GPU, self.gpu.index

    def __dlpack__(self, *, stream: int | None = None, **_: object) -> object:
        """Return a capsule; work on the reader's `stream` comes after what is under way here.

        None is the legacy default stream, -1 asks for no such order (the array API standard).
        """
        if stream != _UNORDERED:
            self._memory.hand_over(_LEGACY if stream is None else stream)
        return dlpack.lend(self.pointer, self.shape, self.dtype, self.gpu.index, self._memory)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """Pointer, shape, type and stream for readers of that protocol (version 3)."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": None,
            "stream": self._memory.stream or _LEGACY,
            "version": 3,
        }


_UNORDERED = -1
_LEGACY = 1


def result_array(
    out: object,
    shape: tuple[int, ...],
    dtype: object,
    gpu: Gpu,
    stream: int,
    *,
    name: str = "out",
    alignment: int = 1,
) -> object:
    """Return where a friendly function writes: `out`, checked, or a new Array where it is None.

    Raises ShapeError, DTypeError or DeviceError for an `out` (called `name`) that is not
    contiguous, not of this shape, type and alignment in bytes, or not on this GPU.
    """
    if out is None:
        return Array(shape, dtype, gpu, stream)
    view = view_of(out)
    if view.shape != shape:
        raise ShapeError(f"{name} has shape {view.shape}, but the result has {shape}")
    check_dense(dtype, **{name: view})
    check_aligned(alignment, **{name: view})
    if (view.device.kind, view.device.index) != ("cuda", gpu.index):
        raise DeviceError(
            f"{name} lies on {view.device}, but the arguments lie on cuda:{gpu.index}"
        )
    return out


class Memory:
    """Bytes on a GPU from the driver's stream-ordered pool; pointer 0 where there are none."""

    def __init__(self, num_bytes: int, gpu: Gpu, stream: int) -> None:
        self.gpu = gpu
        self.stream = stream
        self.pointer = 0
        if num_bytes:
            self.pointer = _take(num_bytes, gpu, stream)

    def __del__(self) -> None:
        """Give the bytes back; at exit the driver may be gone already."""
        if self.pointer:
            with suppress(DriverError), self.gpu.current():
                ask(driver().cuMemFreeAsync, self.pointer, self.stream)

    def hand_over(self, stream: int) -> None:
        """Let `stream` wait for this memory's own stream, and be its own from now on."""
        if (stream or _LEGACY) == (self.stream or _LEGACY):
            return
        bound = driver()
        with self.gpu.current():
            event = ask(bound.cuEventCreate, bound.CUevent_flags.CU_EVENT_DISABLE_TIMING)
            ask(bound.cuEventRecord, event, self.stream)
            ask(bound.cuStreamWaitEvent, stream, event, 0)
            ask(bound.cuEventDestroy, event)
        self.stream = stream


def _take(num_bytes: int, gpu: Gpu, stream: int) -> int:
    with gpu.current():
        try:
            return int(ask(driver().cuMemAllocAsync, num_bytes, stream))
        except OutOfMemory as refused:
            raise OutOfMemory(
                f"{num_bytes} bytes for a result do not fit into the memory of {gpu.name}; "
                "pass out=, or free arrays first"
            ) from refused
