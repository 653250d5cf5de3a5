"""GPU memory for results: taken and given back in a stream's order, readable by any framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import starmap
from math import prod
from typing import Any, Protocol, TypeAlias

import numpy as np

from spaninfer_kernel_launch import dlpack
from spaninfer_kernel_launch.dlpack import dense_strides
from spaninfer_kernel_launch.driver import call_driver, driver
from spaninfer_kernel_launch.errors import DeviceError, DriverError, OutOfMemory, ShapeError
from spaninfer_kernel_launch.framework import dtype_in_torch, torch
from spaninfer_kernel_launch.gpu import Gpu
from spaninfer_kernel_launch.stream import current_gpu_of_torch, current_of_torch
from spaninfer_kernel_launch.view import (
    ArraySpec,
    check_aligned,
    check_dense,
    is_of_torch,
    view_at,
)


class Array:
    """A contiguous array on a GPU that torch.from_dlpack and cupy.from_dlpack take without a copy.

    Its memory is given back on the stream that used it last, when neither it nor anything made from
    it is referred to any more: that stream must still exist then. cupy also reads the CUDA array
    interface, which knows neither bfloat16 nor 8-bit floats.
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
        """Return a capsule; work on the reader's `stream` comes after the work in flight here.

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


Result: TypeAlias = tuple[str, tuple[int, ...], object, int]
"""A result: its name in messages, shape, element type, and alignment in bytes."""


class Allocate(Protocol):
    """A function from a stream's handle to new arrays, in that stream's order."""

    def __call__(self, stream: int, is_current: bool = False) -> tuple[Any, ...]:
        """Return the arrays; `is_current` says that the framework's are in this stream's order now.

        For torch: the stream is the current one of the GPU that is current.
        """


def allocator(like: ArraySpec, gpu: Gpu, *results: Result) -> Allocate:
    """Return what allocates results.

    Tensors where `like` is the spec of a torch tensor, else each an `Array`.
    """
    if is_of_torch(like):
        return _tensors(like[3], results)
    kinds = [(shape, dtype) for _, shape, dtype, _ in results]

    def make(stream: int, is_current: bool = False) -> tuple[Any, ...]:  # noqa: ARG001
        return tuple([Array(shape, dtype, gpu, stream) for shape, dtype in kinds])

    return make


def _tensors(index: int, results: tuple[Result, ...]) -> Allocate:
    """Return an allocator of torch tensors on GPU `index`: 0.7 µs each, an `Array` takes 8."""
    cuda, current = torch().cuda, current_of_torch()
    current_gpu, empty = current_gpu_of_torch(), _empty_of_torch(index)
    kinds = [(shape, dense_strides(shape), dtype_in_torch(dtype)) for _, shape, dtype, _ in results]

    def make(stream: int, is_current: bool = False) -> tuple[Any, ...]:
        # Torch hands memory out on its current GPU, in the order of its current stream there.
        if is_current or (stream == current(index) and index == current_gpu()):
            return (*starmap(empty, kinds),)
        with cuda.stream(cuda.ExternalStream(stream, device=index)):
            return (*starmap(empty, kinds),)

    return make


def _empty_of_torch(index: int) -> Callable[[tuple[int, ...], tuple[int, ...], Any], Any]:
    """Return what makes a tensor of shape, strides and type on the current GPU, number `index`.

    What torch's own generated code calls takes 0.7 µs, `torch.empty` 2.
    """
    guards = getattr(getattr(torch()._C, "_dynamo", None), "guards", None)
    made = getattr(guards, "_empty_strided_cuda", None)
    return made or (
        lambda shape, strides, dtype: torch().empty_strided(
            shape, strides, dtype=dtype, device=f"cuda:{index}"
        )
    )


def check_results(given: tuple[ArraySpec, ...], gpu: Gpu, *results: Result) -> None:
    """Raise unless arrays with these specs can hold the results, where any of them is given.

    They have to be contiguous, of the results' shapes, types and alignments, on this GPU, and as
    many. Raises ShapeError, DTypeError or DeviceError.
    """
    if not any(given):
        return
    for spec, (name, shape, dtype, alignment) in zip(given, results, strict=True):
        if not spec:
            raise ShapeError(f"out lacks {name}; give an array for every result, or none")
        view = view_at(spec)
        if view.shape != shape:
            raise ShapeError(f"{name} has shape {view.shape}, but the result has {shape}")
        check_dense(dtype, **{name: view})
        check_aligned(alignment, **{name: view})
        if (view.device.kind, view.device.index) != ("cuda", gpu.index):
            raise DeviceError(
                f"{name} lies on {view.device}, but the arguments lie on cuda:{gpu.index}"
            )


def new_results(given: Mapping[str, ArraySpec], gpu: Gpu, *results: Result) -> tuple[Result, ...]:
    """Return the results to allocate: all, or none where arrays for them are given by name.

    Raises what `check_results` does.
    """
    specs = tuple(given.get(name, ()) for name, *_ in results)
    check_results(specs, gpu, *results)
    return () if any(specs) else results


class Memory:
    """Bytes on a GPU from the driver's stream-ordered pool; pointer 0 where there are none."""

    def __init__(self, num_bytes: int, gpu: Gpu, stream: int) -> None:
        self.gpu = gpu
        self.stream = stream
        self.pointer = 0
        if num_bytes:
            self.pointer = take_memory(num_bytes, gpu, stream)

    def __del__(self) -> None:
        """Give the bytes back; at exit the driver may be gone already."""
        if self.pointer:
            with suppress(DriverError), self.gpu.current():
                call_driver(driver().cuMemFreeAsync, self.pointer, self.stream)

    def hand_over(self, stream: int) -> None:
        """Let `stream` wait for this memory's own stream, and be its own from now on."""
        if (stream or _LEGACY) == (self.stream or _LEGACY):
            return
        bound = driver()
        with self.gpu.current():
            event = call_driver(bound.cuEventCreate, bound.CUevent_flags.CU_EVENT_DISABLE_TIMING)
            call_driver(bound.cuEventRecord, event, self.stream)
            call_driver(bound.cuStreamWaitEvent, stream, event, 0)
            call_driver(bound.cuEventDestroy, event)
        self.stream = stream


def take_memory(num_bytes: int, gpu: Gpu, stream: int) -> int:
    """Return the address of memory, in the stream's order. Raises OutOfMemory without any."""
    with gpu.current():
        try:
            return int(call_driver(driver().cuMemAllocAsync, num_bytes, stream))
        except OutOfMemory as refused:
            raise OutOfMemory(
                f"{num_bytes} bytes for a result do not fit into the memory of {gpu.name}; "
                "pass out=, or free arrays first"
            ) from refused
