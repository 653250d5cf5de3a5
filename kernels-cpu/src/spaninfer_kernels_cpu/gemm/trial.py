"""Trials of GEMM candidates: products with weights of a model, timed in turns and compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from spaninfer_host_limits import usable_cpus

from spaninfer_kernels_cpu.codegen.memory import aligned
from spaninfer_kernels_cpu.gemm.gemm_call import Gemm
from spaninfer_kernels_cpu.gemm.tuning import (
    FEW_ROWS,
    ROWS,
    Candidate,
    Seconds,
    bound_of,
    is_within,
    weights_within,
)
from spaninfer_kernels_cpu.quantisation.packed import Packed
from spaninfer_kernels_cpu.runtime.call import Matrix, Script
from spaninfer_kernels_cpu.runtime.compilers import MOST, Compilers, OnProgress
from spaninfer_kernels_cpu.runtime.thread_pool import ThreadPool

FEW_BYTES = 256 << 20
"""Of weights that few rows are multiplied by, from memory as in a step. An L3 cache of 480 MB held
96 of them, at 52 GB/s where memory gives 33 (two CPUs of a Xeon)."""
MANY_BYTES = 6 << 20  # and many rows: 64 of them take as long
TURNS = 15
"""Of each candidate; the least time counts, since neighbours on the machine only take some."""

FEWEST_TURNS = 3  # however long one takes
COMPILING = 0.7  # of the budget, first runs included; the rest is for turns


@dataclass(frozen=True, slots=True)
class Trial:
    """Weights of one format, and what their candidates run on and are timed by."""

    weights: Sequence[Packed]
    rounded: bool
    pool: ThreadPool
    compilers: Compilers
    clock: Callable[[], float] = time.perf_counter

    def seconds(
        self, found: Sequence[Candidate], budget_s: float, on_progress: OnProgress
    ) -> dict[str, Seconds]:
        """Return the times of candidates whose results are right, by name, then by rows.

        The first is always timed; the others in order while the budget lasts, compilation
        included. `on_progress` reports those that are done.
        """
        default, *others = found
        timed = [self._ready([default])[0]]
        began, longest = self.clock(), 0.0
        at_once = min(MOST, usable_cpus())
        for first in range(0, len(others), at_once):
            before = self.clock()
            if not is_within(before - began, longest, COMPILING * budget_s):
                break
            on_progress(len(timed), len(found))
            timed += self._ready(others[first : first + at_once])
            longest = max(longest, self.clock() - before)
        right = [each for each in timed if each.is_like(timed[0])]
        for turn in range(TURNS):
            if turn >= FEWEST_TURNS and self.clock() - began > budget_s:
                break
            for each in right:
                each.take_time(self.pool, self.clock)
        on_progress(len(found), len(found))
        return {each.name: each.least() for each in right}

    def seconds_on(self, threads: int, candidate: Candidate) -> Seconds:
        """Return the times of a candidate on that many threads, by rows."""
        with ThreadPool(threads) as pool:
            times = replace(self, pool=pool).seconds([candidate], 0.0, lambda _done, _total: None)
        return times[candidate.name]

    def _ready(self, some: Sequence[Candidate]) -> list[_Timed]:
        """Return candidates that have multiplied once, compiled side by side."""
        kernels = [Gemm(self.weights[0], self.rounded, each.micro).kernel for each in some]
        self.compilers.finish(kernels)
        timed = [_Timed(each, self.weights, self.rounded) for each in some]
        for each in timed:
            each.run(self.pool)
        return timed


class _Timed:
    """A candidate's products: a script per number of rows, its results, its times."""

    def __init__(self, candidate: Candidate, weights: Sequence[Packed], rounded: bool) -> None:
        self.name, self._candidate = candidate.name, candidate
        self._products = {
            rows: _Products(candidate, list(weights_within(weights, _bytes(rows))), rounded, rows)
            for rows in ROWS
        }
        self._taken: dict[int, list[float]] = {rows: [] for rows in ROWS}

    def run(self, pool: ThreadPool) -> None:
        """Multiply once."""
        for rows, products in self._products.items():
            pool.run(products.script, [rows])

    def is_like(self, default: _Timed) -> bool:
        """Return True if all results are those of the default, within the bound."""
        bound = bound_of(self._candidate, default._candidate)
        return all(
            _is_near(ours, theirs, bound)
            for rows, products in self._products.items()
            for ours, theirs in zip(products.out, default._products[rows].out, strict=True)
        )

    def take_time(self, pool: ThreadPool, clock: Callable[[], float]) -> None:
        """Multiply once more by the clock."""
        for rows, products in self._products.items():
            start = clock()
            pool.run(products.script, [rows])
            self._taken[rows].append(clock() - start)

    def least(self) -> dict[int, float]:
        """Return the least of the times, by rows."""
        return {rows: min(taken) for rows, taken in self._taken.items()}


class _Products:
    """Products of random rows with several weights, one after another."""

    def __init__(
        self, candidate: Candidate, weights: Sequence[Packed], rounded: bool, rows: int
    ) -> None:
        gemms = [Gemm(weight, rounded, candidate.micro) for weight in weights]
        widest = max(weight.layout.channels * weight.count for weight in weights)
        rng = np.random.default_rng(0)
        self._x = rng.standard_normal((rows, widest), np.float32)
        self._scratch = aligned((rows * max(gemm.scratch_bytes for gemm in gemms) + 1,), np.uint8)
        self.out = [
            np.zeros((rows, weight.layout.outputs * weight.count), np.float32) for weight in weights
        ]
        self.script = Script(
            [
                call
                for gemm, out in zip(gemms, self.out, strict=True)
                for call in gemm.calls(
                    Matrix.of(self._x), out=Matrix.of(out), scratch=self._scratch.ctypes.data
                )
            ]
        )


def _bytes(rows: int) -> int:
    return FEW_BYTES if rows in FEW_ROWS else MANY_BYTES


def _is_near(ours: NDArray[np.float32], theirs: NDArray[np.float32], bound: float) -> bool:
    """Return True for equal numbers, or such that differ by less than the bound."""
    if np.array_equal(ours, theirs, equal_nan=True):
        return True
    return bool(np.abs(ours - theirs).max() <= bound * np.abs(theirs).max())
