"""Graphs of steps: one pool for all of them, and none where the device lacks the memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")

import torch
from spaninfer_engine.backends.cuda.graphs.graphs import Graphs
from spaninfer_engine.backends.cuda.graphs.shapes import GraphShape

pytestmark = pytest.mark.gpu

MIB = 1 << 20


class Body:
    """A step that takes a MiB and more for each decode, and counts how often it was computed."""

    def __init__(self) -> None:
        self.count = 0
        self.number = torch.ones((), device="cuda")

    def __call__(self, shape: GraphShape, columns: int) -> tuple[torch.Tensor]:
        self.count += 1
        return (self.number.repeat(shape.decodes * MIB // 4) + columns,)

    def blank(self, shape: GraphShape) -> None:
        """Nothing is written that a step would have to leave alone."""


@pytest.fixture
def body() -> Iterator[Body]:
    with torch.cuda.stream(torch.cuda.Stream()):
        yield Body()
    torch.cuda.synchronize()
    torch.cuda.set_per_process_memory_fraction(1.0)


def allow(mib: int) -> None:
    """Let torch have so much memory besides what it has, none of which lies unused."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + mib * MIB) / total)


def replayed(graphs: Graphs, shape: GraphShape) -> list[float]:
    """Return which numbers a replay of a shape's graph computes."""
    captured = graphs.find(shape, 1)
    assert captured is not None
    captured.graph.replay()
    numbers: list[float] = captured.logits.unique().tolist()
    return numbers


def test_a_replay_computes_the_step_anew(body: Body) -> None:
    graphs = Graphs(body, body.blank)

    captured = graphs.find(GraphShape(3), 5)
    assert captured is not None
    body.number.fill_(7.0)
    captured.graph.replay()

    assert captured.logits.unique().tolist() == [12.0]
    assert graphs.find(GraphShape(3), 5) is captured
    assert body.count == 2  # once for what libraries allocate, once captured
    graphs.close()


def test_a_form_without_memory_has_no_graph_until_there_is_more(body: Body) -> None:
    graphs = Graphs(body, body.blank)
    ballast = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    allow(mib=128)

    assert graphs.find(GraphShape(256), 1) is None
    tried = body.count
    assert tried > 0
    assert graphs.find(GraphShape(256), 1) is None
    assert body.count == tried  # not again, with as little memory
    assert graphs.find(GraphShape(2), 1) is not None  # a smaller one has room

    del ballast
    allow(mib=2048)
    assert replayed(graphs, GraphShape(256)) == [2.0]
    graphs.close()


def test_memory_that_fails_inside_a_capture_is_no_error_of_the_next_one(body: Body) -> None:
    graphs = Graphs(body, body.blank)
    allow(mib=600)  # once for the first computation, but not a second time for the graph's pool

    assert graphs.find(GraphShape(256), 1) is None
    assert body.count == 2

    assert replayed(graphs, GraphShape(1)) == [2.0]
    graphs.close()


def test_other_errors_of_a_step_are_raised(body: Body) -> None:
    def broken(shape: GraphShape, columns: int) -> tuple[torch.Tensor]:
        raise RuntimeError(f"{shape} {columns}")

    with pytest.raises(RuntimeError, match="decodes=3"):
        Graphs(broken, body.blank).find(GraphShape(3), 1)


def test_a_thread_without_any_gemm_yet_captures_one() -> None:
    weight = torch.ones((512, 512), device="cuda", dtype=torch.bfloat16)
    rows = torch.ones((300, 512), device="cuda", dtype=torch.bfloat16)
    stream = torch.cuda.Stream()

    def body(shape: GraphShape, _: int) -> tuple[torch.Tensor]:
        some = rows[: shape.decodes]
        return (some @ weight if shape.decodes > 64 else some * 3,)

    def capture(graphs: Graphs, decodes: int) -> list[float]:
        with torch.cuda.stream(stream):
            captured = graphs.find(GraphShape(decodes), 1)
            assert captured is not None
            captured.graph.replay()
            stream.synchronize()
            return captured.logits.unique().tolist()

    graphs = Graphs(body, lambda _: None)
    assert capture(graphs, 200) == [512.0]
    with ThreadPoolExecutor(1) as other:  # cuBLAS has a handle for each thread
        assert other.submit(capture, graphs, 3).result() == [3.0]
        assert other.submit(capture, graphs, 100).result() == [512.0]
    graphs.close()
