"""The choice of a step's graph, and when one is captured, with names in place of graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from spaninfer_engine.backends.cuda.graphs.sampling import ALL_ROWS, FEW_ROWS, SamplingLaunches
from spaninfer_engine.backends.cuda.graphs.shapes import GraphShape, GraphShapes
from spaninfer_engine.backends.cuda.graphs.step_graphs import (
    MAX_LATE_GRAPHS,
    NEEDED,
    NEEDED_IDLE,
    NEEDED_OPEN,
    StepGraphs,
)
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.step.batch import Batch, build_batch
from spaninfer_engine.step.plan import NewSequence, Slice
from spaninfer_engine.step.sampling import SamplingWork
from spaninfer_engine.step.sequences import Sequences

COLUMNS = 4
OWN = SamplingLaunches(typical=FEW_ROWS)


class NamedGraphs:
    """Graphs that are their shapes; those in `too_large` do not fit."""

    def __init__(self) -> None:
        self.captured: list[GraphShape] = []
        self.too_large: set[GraphShape] = set()

    def has(self, shape: GraphShape, columns: int) -> bool:
        return (shape, columns) in [(each, COLUMNS) for each in self.captured]

    def get(self, shape: GraphShape, columns: int) -> Any:
        if not self.has(shape, columns):
            self.captured.append(shape)
        return shape

    def find(self, shape: GraphShape, columns: int) -> Any:
        return None if shape in self.too_large else self.get(shape, columns)


def step(decodes: int, *lengths: int) -> Batch:
    slices = [Slice(n, 40, 41, 40, True) for n in range(decodes)]
    slices += [Slice(decodes + n, 0, x, x - 1, True) for n, x in enumerate(lengths)]
    sequences = Sequences(1, max_len=1, span_len=1, num_rows=1)
    for part in slices:
        sequences.enter(NewSequence(part.seq_id, (0,), SamplingParams(), 0))
    return build_batch(slices, sequences)


@pytest.fixture
def graphs() -> NamedGraphs:
    return NamedGraphs()


@pytest.fixture
def chosen(graphs: NamedGraphs) -> StepGraphs:
    step_graphs: Any = StepGraphs(GraphShapes(100, 600, 2048), graphs, COLUMNS)  # type: ignore[arg-type]
    step_graphs.capture(lambda *_: None)
    return step_graphs


def shape_for(chosen: StepGraphs, batch: Batch, sampling: SamplingLaunches) -> GraphShape | None:
    replay = chosen.find(batch, sampling, COLUMNS, host_angles=False)
    assert replay is None or replay.shape == replay.captured
    return None if replay is None else replay.shape


def test_a_graph_with_its_own_sampling_is_captured_once_enough_steps_needed_it(
    chosen: StepGraphs, graphs: NamedGraphs
) -> None:
    at_start = len(graphs.captured)

    found = [shape_for(chosen, step(3), OWN) for _ in range(NEEDED + 1)]

    own = GraphShape(4, sampling=OWN)
    assert found == [GraphShape(4)] * (NEEDED - 1) + [own, own]
    assert graphs.captured[at_start:] == [own]


def test_idle_time_goes_to_what_steps_lacked_first(chosen: StepGraphs, graphs: NamedGraphs) -> None:
    everybody = SamplingLaunches(logprobs=ALL_ROWS)
    for _ in range(NEEDED_IDLE):
        shape_for(chosen, step(20), everybody)
    shape_for(chosen, step(3), OWN)  # once is too seldom
    at_start = len(graphs.captured)

    while chosen.capture_next():
        pass

    own = GraphShape(24, sampling=SamplingLaunches(logprobs=ALL_ROWS))
    assert graphs.captured[at_start] == own
    assert all(shape.prompts for shape in graphs.captured[at_start + 1 :])
    assert shape_for(chosen, step(20), everybody) == own
    assert shape_for(chosen, step(3), OWN) == GraphShape(4)


def test_a_graph_that_does_not_fit_leaves_the_plain_one(
    chosen: StepGraphs, graphs: NamedGraphs
) -> None:
    graphs.too_large.add(GraphShape(4, sampling=OWN))

    found = {shape_for(chosen, step(3), OWN) for _ in range(3 * NEEDED)}

    assert found == {GraphShape(4)}


def test_there_are_so_many_graphs_with_other_sampling_and_no_more(
    chosen: StepGraphs, graphs: NamedGraphs
) -> None:
    works = [
        SamplingLaunches.of(SamplingWork(*counts)) for counts in np.ndindex(2, 2, 2) if any(counts)
    ]  # seven, for each of 11 numbers of decodes that graphs have room for
    for batch in map(step, range(4, 101, 8)):
        for work in works:
            for _ in range(NEEDED):
                shape_for(chosen, batch, work)

    own = [shape for shape in graphs.captured if shape.sampling != SamplingLaunches()]
    assert len(own) == MAX_LATE_GRAPHS
    assert not chosen.capture_next() or graphs.captured[-1].prompts


def test_prompts_replay_a_graph_of_the_start_until_theirs_is_captured(chosen: StepGraphs) -> None:
    batch = step(3, 20)

    assert shape_for(chosen, batch, OWN) == GraphShape(64, 16, 32)
    while chosen.capture_next():
        pass
    assert shape_for(chosen, batch, OWN) == GraphShape(16, 16, 32)
    assert shape_for(chosen, step(0, 601), OWN) is None


def test_prompts_with_logits_of_many_tokens_are_launched_until_enough_steps_lacked_a_graph(
    graphs: NamedGraphs,
) -> None:
    chosen = StepGraphs(GraphShapes(100, 600, 2048, 2048), graphs, COLUMNS)  # type: ignore[arg-type]
    chosen.capture(lambda *_: None)
    batch = step(3, 20)
    many = replace(batch, logit_start_loc=np.array([0, 1, 2, 3, 23], np.int32))

    found = [shape_for(chosen, many, OWN) for _ in range(NEEDED_OPEN + 1)]

    own = GraphShape.open(64, 512)
    assert found == [None] * (NEEDED_OPEN - 1) + [own, own]
    assert graphs.captured[-1] == own
    assert shape_for(chosen, batch, OWN) == GraphShape(64, 16, 32)


def test_narrow_tables_are_captured_when_a_step_comes(graphs: NamedGraphs) -> None:
    chosen = StepGraphs(GraphShapes(100, 600, 2048), graphs, None)  # type: ignore[arg-type]
    chosen.capture(lambda *_: None)

    assert not chosen.capture_next()
    assert chosen.measure() == 0
    assert graphs.captured == []
    assert shape_for(chosen, step(3), SamplingLaunches()) == GraphShape(4)
    assert shape_for(chosen, step(3, 20), SamplingLaunches()) is None
