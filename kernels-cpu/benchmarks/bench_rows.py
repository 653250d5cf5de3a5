"""Time norms, sampling and mixtures of experts: JSON lines.

    python benchmarks/bench_rows.py [--rows 1 256]

One record per kernel and number of rows, of the shape of Qwen2-0.5B, on one CPU. `gbps` counts the
bytes that are read and written, beside those that a plain read of memory gets; at these sizes they
come from caches.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
from numba import njit
from spaninfer_kernels_cpu import Format, experts, pack_stack
from spaninfer_kernels_cpu.codegen.isa_level import active_level
from spaninfer_kernels_cpu.elementwise.norm_kernel import rms_norm
from spaninfer_kernels_cpu.gemm.roofline import peak_gops, read_gbps
from spaninfer_kernels_cpu.sampling.sample_kernel import Candidates, Sampling, sample

HIDDEN, VOCABULARY = 896, 151936
EXPERTS, PER_TOKEN, EXPERT_INNER = 32, 4, 512
SAMPLINGS = (("greedy", 0, 0, 1), ("all", 1, 0, 1), ("top", 1, 50, 0.9))
MIN_S = 0.05


def main() -> None:
    """Print the records."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", nargs="+", type=int, default=(1, 256))
    row_counts = options.parse_args().rows
    limits = {"read_gbps": round(read_gbps(1), 2), "peak_gops": round(peak_gops("int8"), 1)}
    for rows in row_counts:
        for name, run, num_bytes, operations in cases(rows):
            took = seconds(run)
            record = {
                "kernel": name,
                "rows": rows,
                "us": round(took * 1e6, 2),
                "gbps": round(num_bytes / took / 1e9, 2),
                "gops": round(operations / took / 1e9, 2),
                **limits,
                "of_read": round(num_bytes / took / 1e9 / limits["read_gbps"], 3),
                "tier": active_level().name,
                "machine": platform.machine(),
                "numba": version("numba"),
            }
            print(json.dumps(record), flush=True)


def cases(rows: int) -> Iterator[tuple[str, Callable[[], object], int, int]]:
    """Yield name, call, bytes and operations of every kernel."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, HIDDEN), np.float32)
    weight, out = np.ones(HIDDEN, np.float32), np.empty_like(x)
    address = [array.ctypes.data for array in (x, weight, out)]
    yield "rms_norm", lambda: norm(*address, rows), 8 * x.size, 4 * x.size
    logits = rng.standard_normal(VOCABULARY, np.float32) * np.float32(4)
    room = Candidates(
        *(np.empty(VOCABULARY, dtype) for dtype in (np.float32, np.int32, np.float32, np.int32)),
        np.empty(VOCABULARY, np.uint32),
    )
    for name, temperature, top_k, top_p in SAMPLINGS:
        numbers = (np.float32(temperature), top_k, np.float32(top_p), np.float32(0))
        how = Sampling(*numbers, np.uint64(7), np.uint64(3))
        yield (
            f"sample {name}",
            lambda how=how: [draw(logits, how, room) for _ in range(rows)],  # type: ignore[misc]
            4 * VOCABULARY * rows,
            VOCABULARY * rows,
        )
    yield of_experts(rng, x)


def of_experts(rng: Any, x: Any) -> tuple[str, Callable[[], object], int, int]:
    """Return the case of a mixture of experts in int8, on every usable CPU."""
    rows, form = len(x), Format("int8", 32)
    shapes = ((2 * EXPERT_INNER, HIDDEN), (HIDDEN, EXPERT_INNER))
    gate_up, down = (
        pack_stack([rng.standard_normal((EXPERTS, *shape), np.float32)], form) for shape in shapes
    )
    ids = np.argsort(rng.random((rows, EXPERTS)))[:, :PER_TOKEN].astype(np.int32)
    weights = np.full(ids.shape, 1 / PER_TOKEN, np.float32)
    out = np.empty_like(x)
    used = len(np.unique(ids)) * (gate_up.panels.nbytes + down.panels.nbytes) // EXPERTS
    operations = 6 * rows * PER_TOKEN * HIDDEN * EXPERT_INNER
    return (
        "experts int8 g32",
        lambda: experts(x, gate_up, down, ids, weights, "silu", out=out),
        used,
        operations,
    )


@njit(nogil=True)
def norm(x: int, weight: int, out: int, rows: int) -> None:
    """Every row."""
    for row in range(rows):
        start = row * HIDDEN * 4
        rms_norm(x + start, weight, out + start, HIDDEN, np.float32(1e-6), False)


@njit(nogil=True)
def draw(logits: Any, how: Sampling, room: Candidates) -> int:
    """One row."""
    return sample(logits, how, room)


def seconds(run: Callable[[], object]) -> float:
    """Return how long a call takes: the median of five means of as many calls as fill MIN_S."""
    run()
    return statistics.median(repeat(run) for _ in range(5))


def repeat(run: Callable[[], object]) -> float:
    """Call until MIN_S have passed; return the mean seconds of a call."""
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < MIN_S:
        run()
        calls += 1
    return (time.perf_counter() - start) / calls


if __name__ == "__main__":
    main()
