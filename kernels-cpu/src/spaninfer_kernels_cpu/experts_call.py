"""Gated MLPs of experts as calls, over the rows that chose them.

T rows choose k experts each, P = T k places. The calls: make rows ready, order the places by
expert, copy rows into that order, multiply each run of rows by its expert's gate and up, activate,
make ready, multiply by down, and sum the results of a row with its shares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spaninfer_kernels_cpu.call import Call, Rows, word
from spaninfer_kernels_cpu.elements import FLOAT32, read, read_index, smaller, write
from spaninfer_kernels_cpu.errors import demand_size
from spaninfer_kernels_cpu.formula_call import formula_call, gate_of
from spaninfer_kernels_cpu.memory import odd_lines
from spaninfer_kernels_cpu.packed import Packed
from spaninfer_kernels_cpu.pointer import numbers_at
from spaninfer_kernels_cpu.product_call import run_call
from spaninfer_kernels_cpu.product_task import RUN_NUMBERS
from spaninfer_kernels_cpu.ready_call import ready_bytes, ready_call

_ALL = 1 << 40  # rows that one task takes: those of any step


@dataclass(frozen=True, slots=True)
class Counts:
    """Which of a step's counts are the number of rows, of places, and of runs: see `num_runs`."""

    rows: int
    places: int
    runs: int


def num_runs(rows: int, top_k: int, experts: int) -> int:
    """Return how many experts so many rows can choose at most; as many runs are worked on."""
    return min(rows * top_k, experts)


@dataclass(frozen=True, slots=True)
class Experts:
    """The weights of all experts, E in one: gate_up[2I C], gate above up, and down[C I].

    Each row chooses `top_k` of them; `act` is one of activation_kernel.ACTIVATIONS; `rounded`:
    activations may be rounded to bfloat16 where weights are that.
    """

    gate_up: Packed
    down: Packed
    top_k: int
    act: str
    rounded: bool = False

    def __post_init__(self) -> None:
        """Raise KernelError unless the weights fit together, and there are `top_k` of them."""
        first, second, count = self.gate_up.layout, self.down.layout, self.down.count
        demand_size("weights in gate_up", self.gate_up.count, count, count)
        demand_size("outputs of gate_up", first.outputs, 2 * second.channels, 2 * second.channels)
        demand_size("outputs of down", second.outputs, first.channels, first.channels)
        demand_size("top_k", self.top_k, 1, count)

    @property
    def channels(self) -> int:
        """C."""
        return self.gate_up.layout.channels

    @property
    def inner(self) -> int:
        """I."""
        return self.down.layout.channels

    @property
    def ready_bytes(self) -> int:
        """Bytes from row to row of x as `gate_up` reads it; 0 where that is as it lies."""
        return odd_lines(ready_bytes(self.gate_up.layout, rounded=self.rounded))

    @property
    def ready_inner_bytes(self) -> int:
        """The same of a row of I numbers and `down`."""
        return odd_lines(ready_bytes(self.down.layout, rounded=self.rounded))

    def _areas(self) -> tuple[int, ...]:
        """Return the bytes per row of each area of the scratch memory."""
        row_bytes = self.ready_bytes or 4 * self.channels
        of_place = (
            *(row_bytes, 8 * self.inner, 4 * self.inner, self.ready_inner_bytes),
            *(4 * self.channels, 4, 4 * RUN_NUMBERS),
        )
        return (self.ready_bytes, *(self.top_k * size for size in of_place))

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory per row."""
        return sum(self._areas())

    def calls(
        self,
        x: Rows,
        ids: int,
        shares: int,
        *,
        out: Rows,
        scratch: int,
        capacity: int,
        counts: Counts,
    ) -> list[Call]:
        """Return the calls that write to out[T C] the sums, with shares[T k], of the MLPs that
        ids[T k] (int32) name, of x[T C].

        ids and shares are addresses; at `scratch` are `scratch_bytes` for `capacity` rows, at least
        as many as a step has.
        """
        starts = np.cumsum([0, *(capacity * size for size in self._areas())]) + scratch
        ready, ordered, both, inner, ready_inner, results, rank, runs = starts.tolist()[:-1]
        calls = []
        if self.ready_bytes:
            made = Rows(ready, self.ready_bytes)
            layout, rounded = self.gate_up.layout, self.rounded
            calls.append(ready_call(x, layout, out=made, rounded=rounded, count=counts.rows))
            x = made
        row_bytes = self.ready_bytes or 4 * self.channels
        calls += [
            Call(
                _order,
                (ids, self.top_k, self.gate_up.count, rank, runs),
                *(1, _ALL, counts.rows),
            ),
            Call(
                _gather,
                (x.address, x.stride, row_bytes, self.top_k, rank, ordered),
                *(1, 1, counts.rows),
            ),
            self._product(Rows(ordered, row_bytes), self.gate_up, both, runs, counts),
            formula_call(
                gate_of(self.act),
                Rows(both, 8 * self.inner),
                Rows(both + 4 * self.inner, 8 * self.inner),
                out=Rows(inner, 4 * self.inner),
                channels=self.inner,
                count=counts.places,
            ),
        ]
        rows = Rows(inner, 4 * self.inner)
        if self.ready_inner_bytes:
            made = Rows(ready_inner, self.ready_inner_bytes)
            layout, rounded = self.down.layout, self.rounded
            calls.append(ready_call(rows, layout, out=made, rounded=rounded, count=counts.places))
            rows = made
        words = (results, rank, shares, self.top_k, self.channels, out.address, out.stride)
        return [
            *calls,
            self._product(rows, self.down, results, runs, counts),
            Call(_combine, words, 1, 1, counts.rows),
        ]

    def _product(self, x: Rows, weight: Packed, out: int, runs: int, counts: Counts) -> Call:
        into = Rows(out, 4 * weight.layout.outputs)
        return run_call(x, weight, out=into, runs=runs, rounded=self.rounded, count=counts.runs)


# ---- inside kernels ------------------------------------------------------------------------------


def _order(words: int, rows: int, task: int) -> None:  # noqa: ARG001
    """Write where each place comes when sorted by expert, rank[P], and the runs of the experts."""
    ids, top_k, experts = word(words, 0), word(words, 1), word(words, 2)
    places = rows * top_k
    rank = numbers_at(word(words, 3), places, np.int32)
    next_rank = np.zeros(experts + 1, np.int32)
    for place in range(places):
        next_rank[read_index(ids, place) + 1] += 1
    most = smaller(places, experts)
    runs = numbers_at(word(words, 4), most * RUN_NUMBERS, np.int32)
    runs[:] = 0
    run = 0
    for expert in range(experts):
        count = next_rank[expert + 1]
        next_rank[expert + 1] += next_rank[expert]
        if count > 0:
            runs[run], runs[run + 1], runs[run + 2] = (
                expert,
                next_rank[expert],
                next_rank[expert + 1],
            )
            run += RUN_NUMBERS
    for place in range(places):
        expert = read_index(ids, place)
        rank[place] = next_rank[expert]
        next_rank[expert] += 1


def _gather(words: int, rows: int, task: int) -> None:  # noqa: ARG001
    """Copy a row to where its places come."""
    size, top_k = word(words, 2), word(words, 3)
    source = numbers_at(word(words, 0) + task * word(words, 1), size, np.uint8)
    for place in range(task * top_k, (task + 1) * top_k):
        target = word(words, 5) + read_index(word(words, 4), place) * size
        copy = numbers_at(target, size, np.uint8)
        for i in range(size):
            copy[i] = source[i]


def _combine(words: int, rows: int, task: int) -> None:  # noqa: ARG001
    """Write the sum of a row's results times its shares."""
    top_k, channels = word(words, 3), word(words, 4)
    out = word(words, 5) + task * word(words, 6)
    for i in range(channels):
        write(FLOAT32, out, i, np.float32(0))
    for place in range(task * top_k, (task + 1) * top_k):
        source = word(words, 0) + read_index(word(words, 1), place) * channels * 4
        share = read(FLOAT32, word(words, 2), place)
        for i in range(channels):
            write(FLOAT32, out, i, read(FLOAT32, out, i) + share * read(FLOAT32, source, i))
