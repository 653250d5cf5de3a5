"""CUDA graphs of whole steps: captured for a few shapes, replayed for every step that fits one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import get_ident
from typing import TypeAlias

import torch
from torch import Tensor

from spaninfer_engine.backends.cuda.graphs.memory import lacks_memory
from spaninfer_engine.backends.cuda.graphs.shapes import GraphShape

_GRAPH_BYTES = 2 << 20  # besides the pool: 20 graphs of 28 layers took 1.5 MB each

_log = logging.getLogger(__name__)

Body: TypeAlias = Callable[[GraphShape, int], Sequence[Tensor | None]]


@dataclass(frozen=True, slots=True)
class Captured:
    """A CUDA graph, and the tensors that its replays write: the logits of a whole step, or the
    values that the rest of an open one reads (`GraphShape.is_open`).
    """

    graph: torch.cuda.CUDAGraph
    results: tuple[Tensor | None, ...]

    @property
    def logits(self) -> Tensor:
        """The logits of a whole step."""
        (logits,) = self.results
        assert logits is not None
        return logits


class Graphs:
    """Captured steps by shape, and by the number of span-table columns that they read.

    All of them take their memory from one pool: only one runs at a time, so what the largest one
    needs is enough for all, if it is captured first. Results lie there as well, until the next
    replay of any.
    """

    def __init__(self, body: Body, blank: Callable[[GraphShape], None]) -> None:
        self._body = body  # computes a step on torch's current stream; returns its results
        self._blank = blank  # lets the next step of a shape change nothing
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[tuple[GraphShape, int], Captured] = {}
        self._failed: dict[tuple[GraphShape, int], int] = {}  # with how many bytes free
        self._threads: set[int] = set()  # that have computed a step

    def has(self, shape: GraphShape, table_width: int) -> bool:
        """Return True if the graph of a shape has been captured."""
        return (shape, table_width) in self._captured

    def get(self, shape: GraphShape, table_width: int) -> Captured:
        """Return the graph of a shape, captured now where it has not been: that takes 0.05 s."""
        key = shape, table_width
        if key not in self._captured:
            self._captured[key] = self._capture(shape, table_width)
        return self._captured[key]

    def find(self, shape: GraphShape, table_width: int) -> Captured | None:
        """Return the same, or None where the device lacks memory for it.

        A shape that did not fit is tried again once there is more memory free than then.
        """
        failed = self._failed.get((shape, table_width))
        if failed is not None and _free_bytes() <= failed:
            return None
        try:
            return self.get(shape, table_width)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
        if not self._captured:  # a pool that no graph uses any more is not given to another
            self._pool = torch.cuda.graph_pool_handle()
        free = self._failed[shape, table_width] = _free_bytes()
        _log.warning(
            "%s is launched without a graph: %.0f MiB of device memory are free, too few for one",
            shape,
            free / 2**20,
        )
        return None

    def measure(self, shapes: Sequence[GraphShape], num_shapes: int, table_width: int) -> int:
        """Return the bytes of device memory that so many shapes take, by capturing two of them."""
        free = _free_bytes()
        for shape in shapes[:2]:
            self.get(shape, table_width)
        return free - _free_bytes() + max(num_shapes - 2, 0) * _GRAPH_BYTES

    def close(self) -> None:
        """Free the graphs."""
        self._captured.clear()

    def _capture(self, shape: GraphShape, table_width: int) -> Captured:
        """Capture a step; a thread's first one runs before, so that libraries allocate.

        Each of 70 took 5 ms more when all ran, 7B 20 (H200, 2026-11-22): kernels that were not used
        before are loaded while a step is captured as well.
        """
        if get_ident() not in self._threads:
            self._blank(shape)
            self._body(shape, table_width)
            # cuBLAS has a handle for each thread, and none can be made inside a capture; that step
            # may have been small enough for GEMMs of ours.
            torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]
            torch.cuda.current_stream().synchronize()
            self._threads.add(get_ident())
        graph = torch.cuda.CUDAGraph()
        # Other threads may use CUDA meanwhile: graphs are captured while the engine serves.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            results = self._body(shape, table_width)
        except BaseException:
            with suppress(RuntimeError):  # what made the capture invalid says more
                graph.capture_end()
            raise
        graph.capture_end()
        return Captured(
            graph, tuple([None if each is None else _borrowed(each) for each in results])
        )


def _free_bytes() -> int:
    free: int = torch.cuda.mem_get_info()[0]
    return free


class _Place:
    """The address of a tensor, in the form that other libraries request."""

    def __init__(self, tensor: Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * tensor.itemsize for stride in tensor.stride()),
            "typestr": f"<i{tensor.itemsize}",
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def _borrowed(tensor: Tensor) -> Tensor:
    """Return a tensor in the same place that does not keep the memory.

    Each of a hundred graphs would keep up to 80 MB of logits, which are read right after a replay.
    """
    return torch.as_tensor(_Place(tensor), device=tensor.device).view(tensor.dtype)
