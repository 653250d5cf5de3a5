"""The graphs of an engine's steps: those of its start, and others that are captured by and by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from spaninfer_engine.backends.cuda.graphs.graphs import Captured, Graphs
from spaninfer_engine.backends.cuda.graphs.sampling import PLAIN, SamplingLaunches
from spaninfer_engine.backends.cuda.graphs.shapes import GraphShape, GraphShapes
from spaninfer_engine.step.batch import Batch

# A graph that samples otherwise spares each step 0.1 to 0.2 ms of launches, and takes 20 to 60 to
# capture, in which every request waits, unless nothing else is to be done.
NEEDED = 64
NEEDED_IDLE = 4
MAX_LATE_GRAPHS = 64  # 2 MB each, which the start sets no memory aside for
# An open graph spares a step with log-probabilities of prompts some 4 ms, and takes up to 300.
NEEDED_OPEN = 8


class Replay(NamedTuple):
    """A captured step, and the shape that a batch is padded to."""

    shape: GraphShape
    captured: Captured


class StepGraphs:
    """Finds the graph of a step, and decides when one is captured.

    `table_width` is the number of span-table columns that every step reads; None where it differs
    by step: then no graph is captured ahead of its first step.
    """

    def __init__(self, shapes: GraphShapes, graphs: Graphs, table_width: int | None) -> None:
        self._shapes, self._graphs, self._table_width = shapes, graphs, table_width
        self._others = iter(() if table_width is None else shapes.others)
        self._missed = Counter[tuple[GraphShape, int]]()  # steps that lacked their own
        self._num_late = 0  # graphs that steps lacked

    def find(
        self,
        batch: Batch,
        sampling: SamplingLaunches | None,
        table_width: int,
        *,
        host_angles: bool,
    ) -> Replay | None:
        """Return the smallest graph that a step fits into; None where it is launched as it is.

        `sampling` is None where tokens wait for masks.

        A step with prompts never waits for a capture of 20 to 300 ms: more tokens cost it 1 to 2.
        Nor does one that samples otherwise: a graph with plain sampling serves it until its own is
        captured, and what that has sampled is overwritten.
        """
        shape = self._shapes.find(batch, sampling, host_angles=host_angles)
        if shape is not None and not self._graphs.has(shape, table_width):
            shape = self._fallback(shape, table_width)
        captured = None if shape is None else self._graphs.find(shape, table_width)
        return None if shape is None or captured is None else Replay(shape, captured)

    def measure(self) -> int:
        """Return the bytes that the graphs will take, by capturing the largest ones."""
        if self._table_width is None:
            return 0
        num_shapes = len(self._shapes.at_start) + len(self._shapes.others)
        return self._graphs.measure(self._shapes.at_start, num_shapes, self._table_width)

    def capture(self, progress: Callable[[int, int], None]) -> None:
        """Capture the graphs of a start; others follow when idle, or when steps need them."""
        if self._table_width is None:
            return
        shapes = self._shapes.at_start
        for done, shape in enumerate(shapes):
            progress(done, len(shapes))
            self._graphs.get(shape, self._table_width)
        progress(len(shapes), len(shapes))

    def capture_next(self) -> bool:
        """Capture one more graph that a step may need; False when none is left that fits."""
        missed = self._missed.most_common(1)
        if missed and missed[0][1] >= NEEDED_IDLE:
            return self._capture_late(*missed[0][0])
        shape = next(self._others, None)
        if shape is None or self._table_width is None:
            return False
        captured = self._graphs.find(shape, self._table_width)
        if captured is None:  # nor would the others; a step that needs one tries again
            self._others = iter(())
        return captured is not None

    def _fallback(self, shape: GraphShape, table_width: int) -> GraphShape | None:
        """Return the shape that serves steps of one that is not captured, or is captured now."""
        if shape.is_open:
            return shape if self._is_due(shape, table_width, NEEDED_OPEN) else None
        if shape.prompts:
            fallbacks = self._shapes.fallbacks(shape)
            return next((each for each in fallbacks if self._graphs.has(each, table_width)), None)
        if shape.sampling == PLAIN:
            return shape
        return shape if self._is_due(shape, table_width, NEEDED) else replace(shape, sampling=PLAIN)

    def _is_due(self, shape: GraphShape, table_width: int, needed: int) -> bool:
        """Note that a step lacked its graph; capture that if that many did, and return True."""
        if self._num_late == MAX_LATE_GRAPHS:
            return False
        self._missed[shape, table_width] += 1
        return self._missed[shape, table_width] >= needed and self._capture_late(shape, table_width)

    def _capture_late(self, shape: GraphShape, table_width: int) -> bool:
        """Capture a graph that steps lacked; one that does not fit is forgotten for now."""
        del self._missed[shape, table_width]
        captured = self._graphs.find(shape, table_width)
        self._num_late += captured is not None
        if self._num_late == MAX_LATE_GRAPHS:
            self._missed.clear()
        return captured is not None
