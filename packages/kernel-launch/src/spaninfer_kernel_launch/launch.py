"""The launch configuration of a kernel, and the call that launches it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from math import prod
from struct import Struct, calcsize
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias

from spaninfer_kernel_launch.driver import call_driver, driver, refusal
from spaninfer_kernel_launch.errors import ShapeError, SignatureError
from spaninfer_kernel_launch.gpu import Gpu
from spaninfer_kernel_launch.launch_graph import LaunchGraph, Node
from spaninfer_kernel_launch.module import Kernel
from spaninfer_kernel_launch.signature import ArgumentsT, NoArguments, parameters_of
from spaninfer_kernel_launch.stream import is_capturing
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


Renamed: TypeAlias = Mapping[str, str]
"""By the name of a kernel's parameter: that of its value, where that is another one."""

_NO_NAMES: Final[Mapping[str, Any]] = MappingProxyType({})


class Launches:
    """Calls that read one tuple of values: `launches(stream, values)` packs it and starts them all.

    A kernel's arguments are found by name among `names`, those of the values, or in `constants`.
    Values that no kernel reads are addresses. Raises SignatureError for arguments in neither and
    where kernels read a value as different types. All of it goes through the driver alone, so
    launches are captured into CUDA graphs like any other; several kernels that are started often
    are a graph themselves (launch_graph.py). Threads may share one.
    """

    def __init__(
        self,
        calls: Sequence[tuple[Call[Any], Renamed]],
        names: Sequence[str],
        constants: Mapping[str, Any] = _NO_NAMES,
    ) -> None:
        read = [arguments_of(call, renamed) for call, renamed in calls]
        _check_found(calls, {*names, *constants})
        codes = _codes_of(names, read)
        packer = Struct(f"@{''.join(codes)}")
        self._values = values = ctypes.create_string_buffer(packer.size)
        start = ctypes.addressof(values)
        places = dict(zip(names, (start + begin for begin in _begins(codes)), strict=True))
        self._pack = partial(packer.pack_into, values, 0)
        self._held: list[object] = []  # memory that the driver reads
        self._kernels = []
        self._nodes = []
        for (call, _), arguments in zip(calls, read, strict=True):
            given = [
                places[name] if name in places else self._hold(code, constants[name])
                for name, code in arguments
            ]
            given += map(self._hold, _codes(call.kernel.signature.constants), call.constants)
            pointers = (ctypes.c_void_p * len(given))(*given)
            self._held.append(pointers)
            config = _config(call.launch, call.kernel.gpu)
            function = driver().CUfunction(call.kernel.handle)
            entry = call.kernel.signature.entry
            self._kernels.append((config, function, ctypes.addressof(pointers), entry))
            self._nodes.append(Node(call.kernel, call.launch, ctypes.addressof(pointers)))
        self._stream = _NO_STREAM
        self._graphs: dict[int, LaunchGraph] = {}  # by stream
        self._are_many, self._starts = len(calls) > 1, 0  # without a graph
        self._launch = driver().cuLaunchKernelEx
        self._gpu = calls[0][0].kernel.gpu
        # The values lie in one place, and the driver is called without the GIL.
        lock = Lock()
        self._acquire, self._release = lock.acquire, lock.release

    def start(self, stream: int, values: Iterable[Any]) -> None:
        """Start the kernels on the stream with this handle. Raises DriverError where it cannot."""
        # A special stream is that of the context which is current.
        if stream <= _LAST_SPECIAL_STREAM and not self._gpu.is_current:
            with self._gpu.current():
                self.start(stream, values)
            return
        self._acquire()  # half the time of a with statement
        try:
            self._pack(*values)
            if self._are_many and (graph := self._graph_of(stream)) is not None:
                if status := graph.start(stream, self._values.raw):
                    entries = ", ".join(entry for *_, entry in self._kernels)
                    raise refusal(f"launch of {entries}", status)
                return
            if stream != self._stream:
                for config, *_ in self._kernels:
                    config.hStream = stream
                self._stream = stream
            for config, function, pointers, entry in self._kernels:
                (status,) = self._launch(config, function, pointers, 0)
                if status:
                    raise refusal(f"launch of {entry}", status)
        finally:
            self._release()

    def _graph_of(self, stream: int) -> LaunchGraph | None:
        """Return a stream's graph; None before one is worth it, and while it is captured."""
        if is_capturing(stream):
            return None
        graph = self._graphs.get(stream)
        if graph is None and len(self._graphs) < _MOST_GRAPHS:
            self._starts += 1
            if self._starts > _STARTS_BEFORE_GRAPH:
                graph = self._graphs[stream] = LaunchGraph(self._nodes, self._values.raw)
        return graph

    def _hold(self, code: str, value: Any) -> int:
        """Return the address of a constant, which is kept."""
        memory = ctypes.create_string_buffer(Struct(f"@{code}").pack(value))
        self._held.append(memory)
        return ctypes.addressof(memory)


class Call(Launches, Generic[ArgumentsT]):
    """A kernel with its launch: `call(stream, arguments)` only packs arguments and starts it.

    `constants` are the kernel's last parameters, the same in every call (`Signature.constants`).
    """

    def __init__(
        self,
        kernel: Kernel[ArgumentsT],
        launch: Launch,
        constants: tuple[Any, ...] = NO_ARGUMENTS,
    ) -> None:
        assert type(constants) is kernel.signature.constants, (kernel.signature, type(constants))
        kernel.allow_shared(launch.shared_bytes)
        kernel.allow_cluster(prod(launch.cluster))
        self.kernel, self.launch, self.constants = kernel, launch, constants
        self.names = [parameter.name for parameter in parameters_of(kernel.signature.arguments)]
        super().__init__([(self, {})], self.names)

    if TYPE_CHECKING:

        def __call__(self, stream: int, arguments: ArgumentsT) -> None:
            """Start the kernel on the stream with this handle."""

    else:
        __call__ = Launches.start


def _codes(arguments: type[tuple[Any, ...]]) -> list[str]:
    return [parameter.type.code for parameter in parameters_of(arguments)]


def arguments_of(call: Call[Any], renamed: Renamed) -> list[tuple[str, str]]:
    """Return the names of a call's values, and the codes of their types."""
    codes = _codes(call.kernel.signature.arguments)
    return [(renamed.get(name, name), code) for name, code in zip(call.names, codes, strict=True)]


def _check_found(calls: Sequence[tuple[Call[Any], Renamed]], found: Set[str]) -> None:
    """Raise SignatureError where an argument of a call has no value."""
    for call, renamed in calls:
        for name, _ in arguments_of(call, renamed):
            if name not in found:
                entry = call.kernel.signature.entry
                raise SignatureError(f"kernel {entry}: no value is named {name}")


def _codes_of(names: Sequence[str], read: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """Return the codes of values' types; where kernels do not agree, raise SignatureError."""
    codes: dict[str, str] = {}
    for name, code in (argument for arguments in read for argument in arguments):
        if codes.setdefault(name, code) != code:
            raise SignatureError(f"kernels read {name} as {codes[name]!r} and as {code!r}")
    return [codes.get(name, "P") for name in names]


def _begins(codes: Sequence[str]) -> list[int]:
    """Return where each value begins, aligned as C does."""
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
_STARTS_BEFORE_GRAPH = 16  # to make one takes as long as it saves in about 10
_MOST_GRAPHS = 8
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
