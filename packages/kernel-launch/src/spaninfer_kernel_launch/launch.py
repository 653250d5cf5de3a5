"""The launch configuration of a kernel, and the call that launches it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from struct import Struct, calcsize, pack_into
from threading import Lock
from typing import Any, Final, Generic

from spaninfer_kernel_launch.driver import call_driver, driver, refusal
from spaninfer_kernel_launch.errors import ShapeError
from spaninfer_kernel_launch.gpu import Gpu
from spaninfer_kernel_launch.module import Kernel
from spaninfer_kernel_launch.signature import ArgumentsT, NoArguments
from spaninfer_kernel_launch.variant import BEFORE_HOPPER

_MAX_THREADS = 1024
_MAX_BLOCKS = (2**31 - 1, 65535, 65535)
_MAX_BLOCKS_OF_CLUSTER = 16  # more than 8 only where the GPU agrees


NO_ARGUMENTS: Final = NoArguments()


@dataclass(frozen=True, slots=True)
class Launch:
    """Blocks of the grid and threads of a block along x, y, z; dynamic shared bytes per block.

    `cluster` is the number of blocks, along each axis, that share their memory (Hopper and later).
    With `overlaps` the kernel may start before the one before it on the stream has finished, and
    waits by itself (csrc/overlap.cuh); GPUs before Hopper ignore it.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    overlaps: bool = False

    def __post_init__(self) -> None:
        """Raise where no GPU can launch this."""
        if not 1 <= prod(self.block) <= _MAX_THREADS:
            raise ShapeError(f"a block of {self.block} threads; at least 1, at most 1024 in all")
        if any(not 1 <= n <= most for n, most in zip(self.grid, _MAX_BLOCKS, strict=True)):
            raise ShapeError(f"a grid of {self.grid} blocks; at least 1, at most {_MAX_BLOCKS}")
        if not 1 <= prod(self.cluster) <= _MAX_BLOCKS_OF_CLUSTER:
            raise ShapeError(f"clusters of {self.cluster} blocks; at least 1, at most 16 in all")
        if any(n % c for n, c in zip(self.grid, self.cluster, strict=True)):
            raise ShapeError(f"a grid of {self.grid} blocks is not made of {self.cluster} clusters")


class Call(Generic[ArgumentsT]):
    """A kernel with its launch: `call(stream, arguments)` only packs arguments and starts it.

    `constants` are the kernel's last parameters, the same in every call (`Signature.constants`).
    All of it goes through the driver alone, so calls are captured into CUDA graphs like any other.
    Threads may share a Call.
    """

    def __init__(
        self,
        kernel: Kernel[ArgumentsT],
        launch: Launch,
        constants: tuple[Any, ...] = NO_ARGUMENTS,
    ) -> None:
        signature = kernel.signature
        assert type(constants) is signature.constants, (signature.entry, type(constants))
        kernel.allow_shared(launch.shared_bytes)
        kernel.allow_cluster(prod(launch.cluster))
        codes = [parameter.type.code for parameter in signature.parameters]
        begins = _begins(codes)
        taken = len(codes) - len(constants)
        self._values = ctypes.create_string_buffer(calcsize(f"@{''.join(codes)}"))
        self._pack = partial(Struct(f"@{''.join(codes[:taken])}").pack_into, self._values, 0)
        for begin, code, value in zip(begins[taken:], codes[taken:], constants, strict=True):
            pack_into(code, self._values, begin, value)
        start = ctypes.addressof(self._values)
        self._pointers = (ctypes.c_void_p * len(begins))(*(start + begin for begin in begins))
        self._address = ctypes.addressof(self._pointers)
        self._config = _config(launch, kernel.gpu)
        self._stream = _NO_STREAM
        self._function = driver().CUfunction(kernel.handle)
        self._start = driver().cuLaunchKernelEx
        self._gpu = kernel.gpu
        self._entry = signature.entry
        self._lock = Lock()  # the values lie in one place, and the driver is called without the GIL

    def __call__(self, stream: int, arguments: ArgumentsT) -> None:
        """Start the kernel on the stream with this handle. Raises DriverError where it cannot."""
        # A special stream is that of the context which is current.
        if stream <= _LAST_SPECIAL_STREAM and not self._gpu.is_current:
            with self._gpu.current():
                self(stream, arguments)
            return
        with self._lock:
            self._pack(*arguments)
            if stream != self._stream:
                self._config.hStream = self._stream = stream
            (status,) = self._start(self._config, self._function, self._address, 0)
        if status:
            raise refusal(f"launch of {self._entry}", status)


def _begins(codes: Sequence[str]) -> list[int]:
    """Return where each parameter begins: the C rules of alignment, which CUDA shares."""
    return [
        calcsize(f"@{''.join(codes[: n + 1])}") - calcsize(f"@{code}")
        for n, code in enumerate(codes)
    ]


def blocks_at_once(kernel: Kernel[Any], launch: Launch) -> int:
    """Return how many blocks of `launch` the kernel's GPU runs at the same time.

    A grid of as many fills every multiprocessor evenly: of fewer, some get more than others
    while the previous kernel still has blocks on them.
    """
    kernel.allow_shared(launch.shared_bytes)
    bound = driver()
    with kernel.gpu.current():
        function = call_driver(bound.cuKernelGetFunction, bound.CUkernel(kernel.handle))
        sizes = (prod(launch.block), launch.shared_bytes)
        per_sm = call_driver(bound.cuOccupancyMaxActiveBlocksPerMultiprocessor, function, *sizes)
    return int(per_sm) * kernel.gpu.sm_count


def clusters_at_once(kernel: Kernel[Any], launch: Launch) -> int:
    """Return how many clusters of `launch` the kernel's GPU runs at the same time.

    Fewer than its multiprocessors would hold: those of a cluster have to lie together, and they lie
    in groups that sizes do not divide.
    """
    kernel.allow_shared(launch.shared_bytes)
    kernel.allow_cluster(prod(launch.cluster))
    bound = driver()
    with kernel.gpu.current():
        function = call_driver(bound.cuKernelGetFunction, bound.CUkernel(kernel.handle))
        return int(
            call_driver(bound.cuOccupancyMaxActiveClusters, function, _config(launch, kernel.gpu))
        )


_NO_STREAM = -1
_LAST_SPECIAL_STREAM = 2  # 0 and 1: the legacy default stream, 2: the one of the thread


def _config(launch: Launch, gpu: Gpu) -> Any:
    """Return `launch` on `gpu` as the driver's configuration, without a stream."""
    bound = driver()
    config = bound.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.shared_bytes
    attributes = []
    if launch.cluster != (1, 1, 1):
        cluster = bound.CUlaunchAttribute()
        cluster.id = bound.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        blocks = cluster.value.clusterDim
        blocks.x, blocks.y, blocks.z = launch.cluster
        attributes.append(cluster)
    if launch.overlaps and gpu.arch not in BEFORE_HOPPER:
        overlap = bound.CUlaunchAttribute()
        overlap.id = bound.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        overlap.value.programmaticStreamSerializationAllowed = 1
        attributes.append(overlap)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config
