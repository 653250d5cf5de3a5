"""Weights on their way to a GPU: from mapped files by several threads, noise drawn in place.

    mapped file ──► pinned buffers ──► GPU
           8 threads         16 streams

A thread copies a chunk of the array into a pinned buffer, which reads the file where the system
does not hold it yet, and starts the transfer of the chunk before; so files, host memory and the
bus are busy at the same time. A plain copy from pageable memory does one after the other.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np
import torch
from torch import Tensor

from spaninfer_engine.dummy_array import DummyArray
from spaninfer_engine.ops.operation import Host, Packable

# Of a file that the system holds in memory 22 to 30 GB/s arrive; with chunks of 4 MiB 19, of 32 MiB
# 17, with one plain copy after the other 4 (H200, 16 cores, 2026-11-21). From the disk 3.4.
CHUNK_BYTES = 8 << 20
THREADS = 8


@dataclass(frozen=True, slots=True)
class _Lane:
    """A pinned buffer, the stream on which it is emptied, and when that was last done."""

    buffer: Tensor  # [CHUNK_BYTES] uint8
    stream: torch.cuda.Stream
    emptied: torch.cuda.Event


class Uploader:
    """Fills tensors of a CUDA device; one caller at a time.

    Threads and pinned buffers, 128 MiB, are there from the first array to `close`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._threads: ThreadPoolExecutor | None = None
        self._lanes: SimpleQueue[_Lane] = SimpleQueue()  # the one that was used longest ago first

    def close(self) -> None:
        """Give threads and buffers back; another array takes new ones. Idempotent."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
            self._lanes = SimpleQueue()
            _unpin()

    def _open(self) -> ThreadPoolExecutor:
        _unpin()
        for _ in range(2 * THREADS):
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            emptied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._lanes.put(_Lane(_pinned(CHUNK_BYTES), stream, emptied))
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="spaninfer-upload")
        return self._threads

    def fill(self, array: Packable, out: Tensor) -> None:
        """Run `fill` through pinned memory; return when the numbers have arrived."""
        try:
            if isinstance(array, DummyArray):
                fill(array, out)
            else:
                self._copy(array, out)
        finally:
            torch.cuda.synchronize(self._device)  # other streams read it, and buffers may go

    def _copy(self, array: Host, out: Tensor) -> None:
        threads = self._threads or self._open()
        free = torch.cuda.current_stream(self._device).record_event()
        copies = [
            threads.submit(self._carry, part, target, free) for part, target in _chunks(array, out)
        ]
        wait(copies)
        for copy in copies:
            copy.result()

    def _carry(self, part: Host, target: Tensor, free: torch.cuda.Event) -> None:
        """Copy a chunk into a pinned buffer, and start its transfer once the target is free."""
        lane = self._lanes.get()
        try:
            lane.emptied.synchronize()
            buffer = lane.buffer[: part.nbytes]
            np.copyto(buffer.numpy(), part.view(np.uint8))
            source = buffer.view(_dtype_of(part))
            with torch.cuda.stream(lane.stream):
                lane.stream.wait_event(free)
                if source.dtype != target.dtype:  # converted on the device
                    source = source.to(self._device, non_blocking=True)
                target.copy_(source, non_blocking=True)
                lane.emptied.record(lane.stream)
        finally:
            self._lanes.put(lane)


# What was pinned for buffers that are gone. Unpinned by the next uploader to open or close, not
# when a buffer is collected: inside of a capture that invalidates the graph, and memory that stays
# pinned cannot be pinned for its next owner (error 712).
_left: list[Tensor] = []


def _pinned(num_bytes: int) -> Tensor:
    """Return memory that is pinned while it is there; what torch pins itself, it keeps for ever."""
    memory = torch.empty(num_bytes, dtype=torch.uint8)
    library = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(int(library.cudaHostRegister(memory.data_ptr(), num_bytes, 0)))
    buffer = memory.view(num_bytes)
    weakref.finalize(buffer, _left.append, memory).atexit = False
    return buffer


def _unpin() -> None:
    library = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    while _left:
        memory = _left.pop()
        torch.cuda.check_error(int(library.cudaHostUnregister(memory.data_ptr())))


def fill(array: Packable, out: Tensor) -> None:
    """Fill contiguous `out`, on any device, with an array in its own dtype, or with noise."""
    if isinstance(array, DummyArray):
        generator = torch.Generator(out.device).manual_seed(array.seed)
        out.normal_(array.mean, array.std, generator=generator)
    else:
        out.copy_(_tensor(array))


def _tensor(array: Host) -> Tensor:
    """Return a copy as a tensor; torch cannot hold read-only memory without complaint."""
    copy = np.array(array, order="C").reshape(-1)
    return torch.from_numpy(copy.view(np.uint8)).view(_dtype_of(array)).view(array.shape)


def _dtype_of(array: Host) -> torch.dtype:
    """Return torch's type of the same name; both libraries have bfloat16 and 8-bit floats."""
    dtype: torch.dtype = getattr(torch, array.dtype.name)
    return dtype


def _chunks(array: Host, out: Tensor) -> Iterator[tuple[Host, Tensor]]:
    """Cut an array and its target into pieces that fit a pinned buffer."""
    flat, target = np.ascontiguousarray(array).reshape(-1), out.view(-1)
    step = CHUNK_BYTES // array.itemsize
    for start in range(0, len(flat), step):
        yield flat[start : start + step], target[start : start + step]
