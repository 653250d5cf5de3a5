"""Time what lies between products (norm, rope, append, activation, draw) and experts: JSON lines.

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
from spaninfer_kernels_cpu import Format, experts, pack
from spaninfer_kernels_cpu.elements import BFLOAT16, FLOAT32
from spaninfer_kernels_cpu.limits import peak_gops, read_gbps
from spaninfer_kernels_cpu.rope_kernel import Heads, Rotary, rope_append
from spaninfer_kernels_cpu.rows_kernel import SILU, gate, rms_norm
from spaninfer_kernels_cpu.sample_kernel import Candidates, Sampling, sample
from spaninfer_kernels_cpu.spans import Place, Spans
from spaninfer_kernels_cpu.tiers import chosen

HIDDEN, INNER, VOCABULARY = 896, 4864, 151936
HEADS, KV_HEADS, HEAD_SIZE, SPAN_LEN = 14, 2, 64, 32
EXPERTS, PER_TOKEN, EXPERT_INNER = 32, 4, 512
SAMPLINGS = (("greedy", 0, 0, 1), ("all", 1, 0, 1), ("top", 1, 50, 0.9))
LEAST_S = 0.05


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
                "tier": chosen().name,
                "machine": platform.machine(),
                "numba": version("numba"),
            }
            print(json.dumps(record), flush=True)


def cases(rows: int) -> Iterator[tuple[str, Callable[[], object], int, int]]:
    """Yield name, call, bytes and operations of every kernel."""
    rng = np.random.default_rng(0)
    x, added = (rng.standard_normal((rows, HIDDEN), np.float32) for _ in range(2))
    half = np.zeros((rows, HIDDEN), np.uint16)
    both = rng.standard_normal((rows, 2 * INNER), np.float32)
    inner = np.empty((rows, INNER), np.float32)
    weight = np.ones(HIDDEN, np.float32)
    out, half_out = np.empty_like(x), np.empty_like(half)
    address = [array.ctypes.data for array in (x, added, weight, out)]
    yield "rms_norm float32", lambda: norm(*address, rows), 16 * x.size, 4 * x.size
    address_16 = [array.ctypes.data for array in (half, added, weight, half_out)]
    yield "rms_norm bfloat16", lambda: norm_16(*address_16, rows), 10 * x.size, 4 * x.size
    places = both.ctypes.data, inner.ctypes.data
    yield "silu gate", lambda: silu(*places, rows), 12 * inner.size, 20 * inner.size
    heads = made_ready(rng, rows)
    written = rows * KV_HEADS * HEAD_SIZE * 4 + rows * HEADS * HEAD_SIZE * 8
    yield "rope and append bfloat16", lambda: rope(*heads), written, written
    logits = rng.standard_normal(VOCABULARY, np.float32) * np.float32(4)
    room = Candidates(
        *(np.empty(VOCABULARY, dtype) for dtype in (np.float32, np.int32, np.float32, np.int32)),
        np.empty((4, VOCABULARY // 4), np.uint32),
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
        [pack(rng.standard_normal(shape, np.float32), form) for _ in range(EXPERTS)]
        for shape in shapes
    )
    ids = np.argsort(rng.random((rows, EXPERTS)))[:, :PER_TOKEN].astype(np.int32)
    weights = np.full(ids.shape, 1 / PER_TOKEN, np.float32)
    out = np.empty_like(x)
    used = len(np.unique(ids)) * (gate_up[0].panels.nbytes + down[0].panels.nbytes)
    operations = 6 * rows * PER_TOKEN * HIDDEN * EXPERT_INNER
    return (
        "experts int8 g32",
        lambda: experts(x, gate_up, down, ids, weights, "silu", out=out),
        used,
        operations,
    )


def made_ready(rng: Any, rows: int) -> tuple[Heads, Rotary, Spans, Any]:
    """Return the arguments of `rope_append`, and what keeps their memory."""
    width = (HEADS + 2 * KV_HEADS) * HEAD_SIZE
    qkv = rng.standard_normal((rows, width), np.float32)
    angles = rng.standard_normal((2, rows, HEAD_SIZE // 2), np.float32)
    span, place = (part.astype(np.int32) for part in np.divmod(np.arange(rows), SPAN_LEN))
    caches = np.zeros((2, rows // SPAN_LEN + 1, SPAN_LEN, KV_HEADS, HEAD_SIZE), np.uint16)
    key = qkv.ctypes.data + HEADS * HEAD_SIZE * 4
    stride = qkv.strides[0]
    heads = Heads(
        *(qkv.ctypes.data, stride, key, stride, key + KV_HEADS * HEAD_SIZE * 4, stride),
        *(rows, HEADS, span.ctypes.data, place.ctypes.data),
    )
    cos, sin = angles.ctypes.data, angles[1].ctypes.data
    rotary = Rotary(cos, sin, HEAD_SIZE // 2, False, 0, 0, np.float32(1e-6), False)
    keys, values = (Place(cache.ctypes.data, *cache.strides[:3]) for cache in caches)
    none = Place(0, 0, 0, 0)
    spans = Spans(keys, values, none, none, SPAN_LEN, KV_HEADS, HEAD_SIZE, HEAD_SIZE)
    return heads, rotary, spans, (qkv, angles, span, place, caches)


@njit(nogil=True)
def norm(x: int, added: int, weight: int, out: int, rows: int) -> None:
    """One part."""
    rms_norm(FLOAT32, 0, 1, x, added, weight, out, rows, HIDDEN, np.float32(1e-6), False)


@njit(nogil=True)
def norm_16(x: int, added: int, weight: int, out: int, rows: int) -> None:
    """One part."""
    rms_norm(BFLOAT16, 0, 1, x, added, weight, out, rows, HIDDEN, np.float32(1e-6), False)


@njit(nogil=True)
def silu(both: int, inner: int, rows: int) -> None:
    """One part."""
    gate(FLOAT32, SILU, 0, 1, both, inner, rows, INNER)


@njit(nogil=True)
def turn(heads: Heads, rotary: Rotary, spans: Spans) -> None:
    """One part."""
    rope_append(BFLOAT16, 0, 1, heads, rotary, spans)


def rope(heads: Heads, rotary: Rotary, spans: Spans, _kept: Any) -> None:
    """Turn and append."""
    turn(heads, rotary, spans)


@njit(nogil=True)
def draw(logits: Any, how: Sampling, room: Candidates) -> int:
    """One row."""
    return sample(logits, how, room)


def seconds(run: Callable[[], object]) -> float:
    """Return how long a call takes: the median of five means of as many calls as fill LEAST_S."""
    run()
    return statistics.median(repeat(run) for _ in range(5))


def repeat(run: Callable[[], object]) -> float:
    """Call until LEAST_S have passed; return the mean seconds of a call."""
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < LEAST_S:
        run()
        calls += 1
    return (time.perf_counter() - start) / calls


if __name__ == "__main__":
    main()
