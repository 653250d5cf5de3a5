"""Whole steps as CUDA graphs: captured for a few forms, replayed for every step that fits one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spaninfer_engine.ops.cuda_forms import Form

_GRAPH_BYTES = 2 << 20  # besides the pool: 20 graphs of 28 layers took 1.5 MB each


@dataclass(frozen=True, slots=True)
class Captured:
    """A step of some form, and where its logits lie after each replay."""

    graph: torch.cuda.CUDAGraph
    logits: Tensor


class Graphs:
    """Captured steps by form and number of columns of the span tables.

    All of them take their memory from one pool: only one runs at a time, so what the largest one
    needs is enough for all, if it is captured first. Logits lie there as well, until the next
    replay of any.
    """

    def __init__(self, body: Callable[[Form, int], Tensor], blank: Callable[[Form], None]) -> None:
        self._body = body  # computes a step on torch's current stream; returns the logits
        self._blank = blank  # lets the next step of a form change nothing
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[tuple[Form, int], Captured] = {}

    def has(self, form: Form, columns: int) -> bool:
        """Has the graph of a form been captured?"""
        return (form, columns) in self._captured

    def get(self, form: Form, columns: int) -> Captured:
        """Return the graph of a form, captured now where it has not been: that takes 0.05 s."""
        key = form, columns
        if key not in self._captured:
            self._captured[key] = self._capture(form, columns)
        return self._captured[key]

    def measure(self, forms: Sequence[Form], num_forms: int, columns: int) -> int:
        """Return the bytes of device memory that so many forms take, by capturing two of them."""
        free, _ = torch.cuda.mem_get_info()
        for form in forms[:2]:
            self.get(form, columns)
        left, _ = torch.cuda.mem_get_info()
        return free - left + max(num_forms - 2, 0) * _GRAPH_BYTES

    def close(self) -> None:
        """Free the graphs."""
        self._captured.clear()

    def _capture(self, form: Form, columns: int) -> Captured:
        """Run the step once, so that libraries allocate and kernels compile, then capture it."""
        self._blank(form)
        self._body(form, columns)
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads may use CUDA meanwhile: graphs are captured while the engine serves.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            logits = self._body(form, columns)
        finally:
            graph.capture_end()
        return Captured(graph, _borrowed(logits))


class _Place:
    """Where a tensor lies, as other libraries ask for it."""

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
