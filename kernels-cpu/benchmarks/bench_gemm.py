"""Time GEMMs with packed weights against memory bandwidth and numpy's BLAS: JSON lines.

    python benchmarks/bench_products.py [--shapes 896x896 4864x896] [--rows 1 256] [--rounds 9]

One record per shape (outputs x channels), number of rows and format. Everything of a shape and
number of rows is timed in turns, so that ratios hold where clocks and memory do not: `of_read` is
bytes of weights per second over bytes that a plain read of memory gets, `of_peak` operations over
those that the tile does on weights in registers (measured before), `of_blas` is numpy's time in
float32 over ours. Weights come from memory: copies of them, 256 MB in all, take turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from spaninfer_host_limits import usable_cpus
from spaninfer_kernels_cpu import (
    Format,
    Packed,
    Script,
    compile_all,
    linear,
    pack,
    shared_thread_pool,
)
from spaninfer_kernels_cpu.codegen.isa_level import active_level
from spaninfer_kernels_cpu.gemm.roofline import peak_gops, read_call

Floats = NDArray[np.float32]
T = TypeVar("T")

QWEN2_HALF_B = ("896x896", "4864x896", "896x4864", "151936x896")
FORMATS = (
    Format("float32"),
    Format("bfloat16"),
    Format("int8"),
    Format("int8", 32),
    Format("int8", 128),
    Format("int4", 32),
    Format("int4", 128),
)
COLD_BYTES = 256 << 20  # several times the last-level cache
SETTLE_S = 0.05  # BLAS threads go on spinning for some 30 ms after a product
WARM_S = 0.02  # a thread that slept is often woken on a busy CPU and moved to a free one later
TIMED_S = 0.02


def main() -> None:
    """Print the records of all shapes."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--shapes", nargs="+", default=QWEN2_HALF_B)
    options.add_argument("--rows", nargs="+", type=int, default=(1, 8, 256))
    options.add_argument("--rounds", type=int, default=9)
    asked = options.parse_args()
    compile_all(FORMATS)
    for shape in asked.shapes:
        outputs, channels = map(int, shape.split("x"))
        for record in measure(outputs, channels, asked.rows, asked.rounds):
            print(json.dumps(record), flush=True)


def measure(
    outputs: int, channels: int, row_counts: list[int], rounds: int
) -> Iterator[dict[str, object]]:
    """Yield the records of one shape."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((outputs, channels), np.float32) * np.float32(0.02)
    plain = taking_turns(weight.copy, weight.nbytes)
    packed = {format: pack(weight, format) for format in FORMATS}
    quanta = {
        format: taking_turns(partial(copy_of, one), one.panels.nbytes)
        for format, one in packed.items()
    }
    peaks = {format.kind: peak_gops(format.kind) for format in FORMATS}
    memory, total = np.ones(COLD_BYTES // 8, np.int64), np.empty(1, np.int64)
    read = Script([read_call(memory, total)])
    for num_rows in row_counts:
        x = rng.standard_normal((num_rows, channels), np.float32)
        out = np.empty((num_rows, outputs), np.float32)
        runs: dict[Format | str, Callable[[], object]] = {
            "read": lambda: shared_thread_pool().run(read, [1]),
            "blas": partial(blas, x, plain, out),
        }
        runs.update({format: partial(ours, x, quanta[format], out) for format in FORMATS})
        seconds = in_turns(runs, rounds)
        for format in FORMATS:
            nbytes = packed[format].panels.nbytes
            took = seconds[format]
            yield {
                "kernel": "linear",
                "format": format.kind,
                "group": format.group,
                "outputs": outputs,
                "channels": channels,
                "rows": num_rows,
                "us": round(took * 1e6, 1),
                "gbps": round(nbytes / took / 1e9, 2),
                "gops": round(2 * num_rows * outputs * channels / took / 1e9, 1),
                "read_gbps": round(memory.nbytes / seconds["read"] / 1e9, 2),
                "blas_us": round(seconds["blas"] * 1e6, 1),
                "of_read": round(nbytes / took / (memory.nbytes / seconds["read"]), 3),
                "of_peak": round(
                    2 * num_rows * outputs * channels / took / 1e9 / peaks[format.kind], 3
                ),
                "of_blas": round(seconds["blas"] / took, 2),
                "tier": active_level().name,
                "cpus": usable_cpus(),
                "machine": platform.machine(),
                "numpy": version("numpy"),
                "numba": version("numba"),
            }


def blas(x: Floats, weights: Iterator[Floats], out: Floats) -> None:
    """Multiply by the next copy of the weight in numpy."""
    np.matmul(x, next(weights).T, out=out)


def ours(x: Floats, weights: Iterator[Packed], out: Floats) -> None:
    """Multiply by the next copy of the packed weight."""
    linear(x, next(weights), out=out)


def taking_turns(make: Callable[[], T], nbytes: int) -> Iterator[T]:
    """Return what `make` makes, as often as fills COLD_BYTES, one after the other without end."""
    return itertools.cycle([make() for _ in range(max(1, COLD_BYTES // nbytes))])


def copy_of(packed: Packed) -> Packed:
    """Return the same weight elsewhere in memory."""
    return Packed(packed.layout, packed.panels.copy())


def in_turns(
    runs: dict[Format | str, Callable[[], object]], rounds: int
) -> dict[Format | str, float]:
    """Return the median seconds of every run; in each round, all of them are timed once."""
    times: dict[Format | str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            time.sleep(SETTLE_S)
            times[name].append(seconds_of(run))
    return {name: statistics.median(values) for name, values in times.items()}


def seconds_of(run: Callable[[], object]) -> float:
    """Return how long one call takes, the mean of as many as fill TIMED_S after a warm-up."""
    repeat(run, WARM_S)
    return repeat(run, TIMED_S)


def repeat(run: Callable[[], object], least_s: float) -> float:
    """Call until `least_s` have passed; return the mean seconds of a call."""
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < least_s:
        run()
        calls += 1
    return (time.perf_counter() - start) / calls


if __name__ == "__main__":
    main()
