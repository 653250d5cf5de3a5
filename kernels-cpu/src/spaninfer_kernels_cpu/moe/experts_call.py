"""Gated MLPs of experts as calls, over the tokens that chose them.

T tokens choose k experts each: P = T k pairs. The calls: prepare tokens, order the pairs by expert,
copy tokens into that order, multiply each expert's segment by its gate and up, activate, prepare,
multiply by down, and sum the results of a token with its weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.arguments import Arguments
from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.elements import FLOAT32, read, read_index, smaller, write
from spaninfer_kernels_cpu.codegen.isa_level import active_level
from spaninfer_kernels_cpu.codegen.memory import odd_lines
from spaninfer_kernels_cpu.elementwise.formula_call import formula_call, gate_formula
from spaninfer_kernels_cpu.errors import check_vector, demand_size
from spaninfer_kernels_cpu.gemm.gemm_call import Gemm
from spaninfer_kernels_cpu.gemm.gemm_kernel import SEGMENT_NUMBERS
from spaninfer_kernels_cpu.gemm.micro_kernel_choice import micro_kernels
from spaninfer_kernels_cpu.gemm.prepare_activations import RowReaders, prepare_call, prepared_bytes
from spaninfer_kernels_cpu.moe.route_call import Routes
from spaninfer_kernels_cpu.quantisation.layout import Layout
from spaninfer_kernels_cpu.quantisation.packed import Packed
from spaninfer_kernels_cpu.runtime.call import ALL_TOKENS, Call, Matrix, row_at

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ExpertCounts:
    """The step's counts that are the numbers of tokens, pairs and segments (`num_segments`)."""

    tokens: int
    pairs: int
    segments: int


def num_segments(tokens: int, top_k: int, experts: int) -> int:
    """Return the most experts that a step's tokens can choose; each has a segment of pairs."""
    return min(tokens * top_k, experts)


@dataclass(frozen=True, slots=True)
class _Areas:
    """Areas of the scratch memory: their bytes per token, or their addresses."""

    prepared: int
    ordered: int
    gate_up: int
    inner: int
    prepared_inner: int
    results: int
    rank: int
    segments: int


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The weights of all experts, E in one: gate_up[2I C], gate above up, and down[C I].

    Each token chooses `top_k` of them; `act` is one of GATES; `rounded`: activations may be
    rounded to bfloat16 where weights are that. gate_up_bias[E 2I] and down_bias[E C] (float32) join
    the products where there are any.
    """

    gate_up: Packed
    down: Packed
    top_k: int
    act: str
    rounded: bool = False
    gate_up_bias: Floats | None = None
    down_bias: Floats | None = None

    def __post_init__(self) -> None:
        """Raise KernelError unless the weights fit together, and there are `top_k` of them."""
        first, second, count = self.gate_up.layout, self.down.layout, self.down.count
        demand_size("weights in gate_up", self.gate_up.count, count, count)
        demand_size("outputs of gate_up", first.outputs, 2 * second.channels, 2 * second.channels)
        demand_size("outputs of down", second.outputs, first.channels, first.channels)
        demand_size("top_k", self.top_k, 1, count)
        for name, bias, outputs in (
            ("gate_up_bias", self.gate_up_bias, first.outputs),
            ("down_bias", self.down_bias, second.outputs),
        ):
            if bias is not None:
                check_vector(name, bias.reshape(-1), count * outputs)

    @property
    def channels(self) -> int:
        """C."""
        return self.gate_up.layout.channels

    @property
    def inner(self) -> int:
        """I."""
        return self.down.layout.channels

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory per token."""
        return sum(self._sizes())

    def calls(
        self,
        x: Matrix,
        routes: Routes,
        *,
        out: Matrix,
        scratch: int,
        capacity: int,
        counts: ExpertCounts,
    ) -> list[Call]:
        """Return the calls that write to out[T C] the weighted sums of the MLPs of x[T C] that the
        routes name.

        At `scratch` are `scratch_bytes` for `capacity` tokens, at least as many as a step has.
        """
        starts = np.cumsum([0, *(capacity * size for size in self._sizes())]) + scratch
        areas = _Areas(*starts.tolist()[:-1])
        row_bytes = self._prepared_bytes or 4 * self.channels
        ordered = Matrix(areas.ordered, row_bytes)
        calls, x = self._prepared(x, self.gate_up.layout, areas.prepared, counts.tokens)
        calls += [
            self._order(routes, areas, counts),
            self._gather(x, ordered, areas, counts),
            self._product(ordered, self.gate_up, areas.gate_up, areas.segments, counts),
            *_biased(self.gate_up_bias, areas.gate_up, areas.segments, counts),
            self._activate(areas, counts),
        ]
        inner = Matrix(areas.inner, 4 * self.inner)
        more, inner = self._prepared(inner, self.down.layout, areas.prepared_inner, counts.pairs)
        product = self._product(inner, self.down, areas.results, areas.segments, counts)
        biased = _biased(self.down_bias, areas.results, areas.segments, counts)
        return [*calls, *more, product, *biased, self._combine(routes, out, areas, counts)]

    @property
    def _prepared_bytes(self) -> int:
        """Bytes from row to row of x as `gate_up` reads it; 0 where that is as it lies."""
        return self._row_bytes(self.gate_up.layout)

    def _sizes(self) -> tuple[int, ...]:
        """Return the bytes per token of each area of the scratch memory, in order."""
        of_pair = (
            self._prepared_bytes or 4 * self.channels,
            8 * self.inner,
            4 * self.inner,
            self._row_bytes(self.down.layout),
            4 * self.channels,
            4,
            4 * SEGMENT_NUMBERS,
        )
        return (self._prepared_bytes, *(self.top_k * size for size in of_pair))

    def _prepared(
        self, x: Matrix, layout: Layout, scratch: int, count: int
    ) -> tuple[list[Call], Matrix]:
        """Return the call that prepares rows, if they need that, and where they are then."""
        stride = self._row_bytes(layout)
        if not stride:
            return [], x
        out = Matrix(scratch, stride)
        return [prepare_call(x, layout, self._readers(layout), out=out, count=count)], out

    def _row_bytes(self, layout: Layout) -> int:
        """Return the bytes from row to row as a weight reads them; 0 where that is as they lie."""
        return odd_lines(prepared_bytes(layout, self._readers(layout)))

    def _readers(self, layout: Layout) -> RowReaders:
        """Return what reads the rows that a weight multiplies: however many, as one is read."""
        one, _ = micro_kernels(layout.format, rounded=self.rounded, level=active_level())
        return RowReaders(one)

    def _order(self, routes: Routes, areas: _Areas, counts: ExpertCounts) -> Call:
        arguments = _OrderArguments(
            ids=routes.ids,
            top_k=self.top_k,
            experts=self.gate_up.count,
            rank=areas.rank,
            segments=areas.segments,
        )
        return Call(_order, arguments, 1, ALL_TOKENS, counts.tokens)

    def _gather(self, x: Matrix, ordered: Matrix, areas: _Areas, counts: ExpertCounts) -> Call:
        arguments = _GatherArguments(x=x, ordered=ordered, top_k=self.top_k, rank=areas.rank)
        return Call(_gather, arguments, 1, 1, counts.tokens)

    def _activate(self, areas: _Areas, counts: ExpertCounts) -> Call:
        width = 4 * self.inner
        return formula_call(
            gate_formula(self.act),
            (Matrix(areas.gate_up, 2 * width), Matrix(areas.gate_up + width, 2 * width)),
            out=Matrix(areas.inner, width),
            channels=self.inner,
            count=counts.pairs,
        )

    def _product(
        self, x: Matrix, weight: Packed, out: int, segments: int, counts: ExpertCounts
    ) -> Call:
        into = Matrix(out, 4 * weight.layout.outputs)
        gemm = Gemm(weight, self.rounded)
        return gemm.grouped_call(x, out=into, segments=segments, count=counts.segments)

    def _combine(self, routes: Routes, out: Matrix, areas: _Areas, counts: ExpertCounts) -> Call:
        arguments = _CombineArguments(
            results=areas.results,
            rank=areas.rank,
            weights=routes.weights,
            top_k=self.top_k,
            channels=self.channels,
            out=out,
        )
        return Call(_combine, arguments, 1, 1, counts.tokens)


def _biased(bias: Floats | None, rows: int, segments: int, counts: ExpertCounts) -> list[Call]:
    """Return the call that adds to the rows of each segment its expert's bias, if there is one."""
    if bias is None:
        return []
    arguments = _BiasArguments(
        rows=rows, bias=bias.ctypes.data, outputs=bias.shape[1], segments=segments
    )
    return [Call(_add_bias, arguments, 1, 1, counts.segments)]


# ---- kernels -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _OrderArguments(Arguments):
    ids: int
    top_k: int
    experts: int
    rank: int
    segments: int


def _order(arguments: _OrderArguments, tokens: int, task: int) -> None:  # noqa: ARG001
    """Write where each pair comes when sorted by expert, rank[P], and the experts' segments."""
    ids, top_k, experts = arguments.ids, arguments.top_k, arguments.experts
    pairs = tokens * top_k
    rank = numbers_at(arguments.rank, pairs, np.int32)
    next_rank = np.zeros(experts + 1, np.int32)
    for pair in range(pairs):
        next_rank[read_index(ids, pair) + 1] += 1
    most = smaller(pairs, experts)
    segments = numbers_at(arguments.segments, most * SEGMENT_NUMBERS, np.int32)
    segments[:] = 0
    segment = 0
    for expert in range(experts):
        count = next_rank[expert + 1]
        next_rank[expert + 1] += next_rank[expert]
        if count > 0:
            segments[segment], segments[segment + 1], segments[segment + 2] = (
                expert,
                next_rank[expert],
                next_rank[expert + 1],
            )
            segment += SEGMENT_NUMBERS
    for pair in range(pairs):
        expert = read_index(ids, pair)
        rank[pair] = next_rank[expert]
        next_rank[expert] += 1


@dataclass(frozen=True, slots=True)
class _GatherArguments(Arguments):
    x: Matrix
    ordered: Matrix
    top_k: int
    rank: int


def _gather(arguments: _GatherArguments, tokens: int, task: int) -> None:  # noqa: ARG001
    """Copy a token to where its pairs come."""
    size, top_k = arguments.ordered.stride, arguments.top_k
    source = numbers_at(row_at(arguments.x, task), size, np.uint8)
    for pair in range(task * top_k, (task + 1) * top_k):
        target = row_at(arguments.ordered, read_index(arguments.rank, pair))
        copy = numbers_at(target, size, np.uint8)
        for i in range(size):
            copy[i] = source[i]


@dataclass(frozen=True, slots=True)
class _BiasArguments(Arguments):
    rows: int
    bias: int
    outputs: int
    segments: int


def _add_bias(arguments: _BiasArguments, tokens: int, task: int) -> None:  # noqa: ARG001
    """Add its expert's bias to every row of a segment."""
    outputs, segment = arguments.outputs, arguments.segments + task * SEGMENT_NUMBERS * 4
    bias = floats_at(arguments.bias + read_index(segment, 0) * outputs * 4, outputs)
    for row in range(read_index(segment, 1), read_index(segment, 2)):
        into = floats_at(arguments.rows + row * outputs * 4, outputs)
        for i in range(outputs):
            into[i] += bias[i]


@dataclass(frozen=True, slots=True)
class _CombineArguments(Arguments):
    results: int
    rank: int
    weights: int
    top_k: int
    channels: int
    out: Matrix


def _combine(arguments: _CombineArguments, tokens: int, task: int) -> None:  # noqa: ARG001
    """Write the sum of a token's results times its weights."""
    top_k, channels = arguments.top_k, arguments.channels
    out = row_at(arguments.out, task)
    for i in range(channels):
        write(FLOAT32, out, i, np.float32(0))
    for pair in range(task * top_k, (task + 1) * top_k):
        source = arguments.results + read_index(arguments.rank, pair) * channels * 4
        weight = read(FLOAT32, arguments.weights, pair)
        for i in range(channels):
            write(FLOAT32, out, i, read(FLOAT32, out, i) + weight * read(FLOAT32, source, i))
