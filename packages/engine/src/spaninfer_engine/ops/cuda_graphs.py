"""Whole steps as CUDA graphs: captured for a few forms, replayed for every step that fits one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from spaninfer_engine.ops.cuda_forms import Form


@dataclass(frozen=True, slots=True)
class Captured:
    """A step of some form, and where its logits lie after each replay."""

    graph: torch.cuda.CUDAGraph
    logits: Tensor


class Graphs:
    """Captured steps by form and number of columns of the span tables.

    All of them take their memory from one pool: only one runs at a time, so what the largest one
    needs is enough for all, if it is captured first.
    """

    def __init__(self, body: Callable[[Form, int], Tensor], blank: Callable[[Form], None]) -> None:
        self._body = body  # computes a step on torch's current stream; returns the logits
        self._blank = blank  # lets the next step of a form change nothing
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[tuple[Form, int], Captured] = {}

    def get(self, form: Form, columns: int) -> Captured:
        """Return the graph of a form, captured now where it has not been: that takes 0.05 s."""
        key = form, columns
        if key not in self._captured:
            self._captured[key] = self._capture(form, columns)
        return self._captured[key]

    def measure(self, forms: Sequence[Form], columns: int) -> int:
        """Return the bytes of device memory that all forms take, by capturing the first two."""
        free = [torch.cuda.mem_get_info()[0]]
        for form in forms[:2]:
            self.get(form, columns)
            free.append(torch.cuda.mem_get_info()[0])
        first, *others = [before - after for before, after in pairwise(free)]
        return first + (len(forms) - 1) * max(others, default=0)

    def close(self) -> None:
        """Free the graphs."""
        self._captured.clear()

    def _capture(self, form: Form, columns: int) -> Captured:
        """Run the step once, so that libraries allocate and kernels compile, then capture it."""
        self._blank(form)
        self._body(form, columns)
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool)
        try:
            logits = self._body(form, columns)
        finally:
            graph.capture_end()
        return Captured(graph, logits)
