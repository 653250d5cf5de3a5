"""Time attention over spans beside the same mathematics in numpy with BLAS: one JSON line per case.

    python benchmarks/bench_attention.py

Both are timed in turns in the same process, so that the ratio holds where the clock does not.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray
from spaninfer_kernels_cpu import Rows, Scores, attend, compile_all, usable_cpus

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """`requests` times `rows` queries, whose positions begin at `start`."""

    requests: int
    start: int
    rows: int
    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    span_len: int = 32

    @property
    def length(self) -> int:
        """Positions of a request."""
        return self.start + self.rows


CASES = (
    Case(1, 500, 1, heads=8, kv_heads=2, key_size=64, value_size=64),
    Case(1, 4000, 1, heads=14, kv_heads=2, key_size=64, value_size=64),
    Case(1, 4000, 1, heads=32, kv_heads=8, key_size=128, value_size=128),
    Case(16, 1000, 1, heads=14, kv_heads=2, key_size=64, value_size=64),
    Case(1, 0, 256, heads=14, kv_heads=2, key_size=64, value_size=64),
    Case(1, 1000, 256, heads=32, kv_heads=8, key_size=128, value_size=128),
    Case(1, 700, 4, heads=16, kv_heads=1, key_size=576, value_size=512),
)


def main() -> None:
    """Print a record per case."""
    compile_all()
    for case in CASES:
        print(json.dumps(measure(case)), flush=True)


def measure(case: Case, rounds: int = 15) -> dict[str, object]:
    """Return medians in µs, their ratio, and the gigabytes of keys and values read per second."""
    rng = np.random.default_rng(0)
    spans = -(-case.length // case.span_len)
    shape = (case.requests * spans, case.span_len, case.kv_heads)
    keys = rng.standard_normal((*shape, case.key_size), dtype=np.float32)
    values = rng.standard_normal((*shape, case.value_size), dtype=np.float32)
    tables = rng.permutation(shape[0]).reshape(case.requests, spans).astype(np.int32)
    position = np.arange(case.start, case.length, dtype=np.int32)
    rows = Rows(
        tables,
        np.repeat(np.arange(case.requests, dtype=np.int32), case.rows),
        np.tile(position, case.requests),
    )
    queries = (case.requests * case.rows, case.heads)
    query = rng.standard_normal((*queries, case.key_size), dtype=np.float32)
    ours, theirs = (np.empty((*queries, case.value_size), np.float32) for _ in range(2))
    scores = Scores(case.key_size**-0.5)

    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        times[0].append(seconds(lambda: attend(query, keys, values, rows, scores, out=ours)))
        times[1].append(seconds(lambda: with_blas(case, query, keys, values, tables, theirs)))
    assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    ours_us, numpy_us = (statistics.median(part) * 1e6 for part in times)
    read_bytes = 4 * case.requests * case.length * case.kv_heads * (case.key_size + case.value_size)
    return {
        "kernel": "attention",
        **asdict(case),
        "us": round(ours_us, 1),
        "numpy_us": round(numpy_us, 1),
        "ratio": round(numpy_us / ours_us, 2),
        "gbps": round(read_bytes / ours_us / 1e3, 2),
        "cpus": usable_cpus(),
        "machine": platform.machine(),
        "numpy": version("numpy"),
        "numba": version("numba"),
    }


def seconds(function: Callable[[], None]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def with_blas(
    case: Case, query: Array, keys: Array, values: Array, tables: NDArray[np.int32], out: Array
) -> None:
    """Write the result into `out`: spans gathered, two matrix products, a softmax of whole rows."""
    group = case.heads // case.kv_heads
    hidden = np.arange(case.length) > np.arange(case.start, case.length)[:, None]
    for request, table in enumerate(tables):
        part = slice(request * case.rows, (request + 1) * case.rows)
        k, v = (
            x[table].reshape(-1, case.kv_heads, x.shape[-1])[: case.length].transpose(1, 0, 2)
            for x in (keys, values)
        )
        q = query[part].reshape(case.rows, case.kv_heads, group, -1).transpose(1, 2, 0, 3)
        score = q @ k[:, None].swapaxes(2, 3) * np.float32(case.key_size**-0.5)
        score[..., hidden] = -np.inf
        weight = np.exp(score - score.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        out[part] = (weight @ v[:, None]).transpose(2, 0, 1, 3).reshape(case.rows, case.heads, -1)


if __name__ == "__main__":
    main()
