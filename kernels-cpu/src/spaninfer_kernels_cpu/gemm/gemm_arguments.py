"""The arguments of a GEMM, and a job of a task: a block of a panel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spaninfer_kernels_cpu.codegen.arguments import Arguments, Float32
from spaninfer_kernels_cpu.runtime.call import Matrix


@dataclass(frozen=True, slots=True)
class WeightSizes(Arguments):
    """The sizes of a packed weight (`layout.Layout`)."""

    panel_bytes: int
    records: int
    panels: int
    outputs: int


@dataclass(frozen=True, slots=True)
class WorkChunks(Arguments):
    """The panels that a task takes: chunk n is starts[n] to starts[n + 1] (int64)."""

    starts: int
    count: int


@dataclass(frozen=True, slots=True)
class GemmArguments(Arguments):
    """x, whose rows have a part of `part_bytes` for each weight, times weights, into out.

    `panels` is the address of the weights; `bias`, `residual` and `segments` are 0 for none.
    `half`: the number of panels of gates, where panels behind them are their factors; 0 where
    nothing is gated. `activated`: products are given to the kernel's activation.
    """

    panels: int
    weight: WeightSizes
    x: Matrix
    part_bytes: int
    out: Matrix
    bias: int
    residual: Matrix
    scale: Float32
    segments: int
    chunks: WorkChunks
    half: int
    activated: bool
    threads: int
    k_blocks: int
    rows_per_task: int


class Job(NamedTuple):
    """A block of the channels of a panel, by number, of weights at an address; room for a tile, and
    for the sums of gates that AMX tiles multiply.

    `rows` are all of the call, or its segments.
    """

    arguments: GemmArguments
    weights: int
    tile: int
    gates: int
    panel: int
    k_block: int
    rows: int
