"""Time attention over spans beside the same mathematics in numpy with BLAS: JSON lines.

    python benchmarks/bench_attention.py

One record per case and kind of keys and values, of float32 and bfloat16 another of `narrow`
products. All are timed in turns in the same process, so that
ratios hold where the clock does not: `of_read` is bytes of keys and values per second over those of
a plain read of memory, `of_peak` operations over those that tiles of float32 do in registers,
`ratio` the time of numpy on float32 over ours.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from spaninfer_host_limits import usable_cpus
from spaninfer_kernels_cpu import AttentionBatch, KVArray, Scores, attend, compile_all
from spaninfer_kernels_cpu.codegen.elements import ELEMENTS
from spaninfer_kernels_cpu.codegen.isa_level import active_level
from spaninfer_kernels_cpu.gemm.roofline import peak_gops, read_gbps

Array = NDArray[np.float32]

KINDS = ("float32", "bfloat16", "int8", "uint4")
SERIES = (*((kind, False) for kind in KINDS), ("float32", True), ("bfloat16", True))


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
    compile_all(kinds=KINDS)
    read, peak = read_gbps(), peak_gops("float32")
    for case in CASES:
        for record in measure(case, read, peak):
            print(json.dumps(record), flush=True)


def measure(case: Case, read: float, peak: float, rounds: int = 15) -> Iterator[dict[str, object]]:
    """Yield medians in µs, what they are of the limits (GB/s and Gop/s), and numpy's."""
    rng = np.random.default_rng(0)
    spans = -(-case.length // case.span_len)
    shape = (case.requests * spans, case.span_len, case.kv_heads)
    keys = rng.standard_normal((*shape, case.key_size), dtype=np.float32)
    values = rng.standard_normal((*shape, case.value_size), dtype=np.float32)
    tables = rng.permutation(shape[0]).reshape(case.requests, spans).astype(np.int32)
    position = np.arange(case.start, case.length, dtype=np.int32)
    rows = AttentionBatch(
        tables,
        np.repeat(np.arange(case.requests, dtype=np.int32), case.rows),
        np.tile(position, case.requests),
    )
    queries = (case.requests * case.rows, case.heads)
    query = rng.standard_normal((*queries, case.key_size), dtype=np.float32)
    ours, theirs = (np.empty((*queries, case.value_size), np.float32) for _ in range(2))
    scores = Scores(case.key_size**-0.5)
    stored = {kind: (as_stored(keys, kind), as_stored(values, kind)) for kind in KINDS}

    def ours_over(kind: str, narrow: bool) -> None:
        key, value = (KVArray(*each) for each in stored[kind])
        attend(query, key, value, rows, replace(scores, narrow=narrow), out=ours)

    times: dict[object, list[float]] = {name: [] for name in (*SERIES, "numpy")}
    for _ in range(rounds):
        for one in SERIES:
            times[one].append(seconds(lambda one=one: ours_over(*one)))  # type: ignore[misc]
        times["numpy"].append(seconds(lambda: with_blas(case, query, keys, values, tables, theirs)))
    ours_over("float32", False)
    assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    took = {name: statistics.median(part) for name, part in times.items()}
    numbers = case.requests * case.length * case.kv_heads * (case.key_size + case.value_size)
    seen = case.requests * int((position + 1).sum())
    operations = 2 * seen * case.heads * (case.key_size + case.value_size)
    for kind, narrow in SERIES:
        time_s = took[kind, narrow]
        gbps = numbers * ELEMENTS[kind].bits / 8 / time_s / 1e9
        gops = operations / time_s / 1e9
        yield {
            "kernel": "attention",
            "kind": kind,
            "narrow": narrow,
            **asdict(case),
            "us": round(time_s * 1e6, 1),
            "numpy_us": round(took["numpy"] * 1e6, 1),
            "ratio": round(took["numpy"] / time_s, 2),
            "gbps": round(gbps, 2),
            "read_gbps": round(read, 2),
            "of_read": round(gbps / read, 3),
            "gops": round(gops, 1),
            "peak_gops": round(peak, 1),
            "of_peak": round(gops / peak, 3),
            "tier": active_level().name,
            "cpus": usable_cpus(),
            "machine": platform.machine(),
            "numpy": version("numpy"),
            "numba": version("numba"),
        }


def as_stored(x: Array, kind: str) -> tuple[NDArray[Any], Array | None]:
    """Return keys or values as the kernel reads them, and the zeros and scales of codes."""
    if kind == "bfloat16":
        return x.astype(ml_dtypes.bfloat16), None
    if kind == "float32":
        return x, None
    first, last = ELEMENTS[kind].first, ELEMENTS[kind].last
    least, most = (f(x, -1, keepdims=True) for f in (np.min, np.max))
    scale = (most - least) / np.float32(last - first)
    zero = np.rint(first - least / scale)
    codes = np.clip(np.rint(x / scale + zero), first, last).astype(np.int8)
    scales = np.concatenate([zero, scale], -1).astype(np.float32)
    if kind == "int8":
        return codes, scales
    nibbles = codes.astype(np.uint8)
    return nibbles[..., 0::2] | nibbles[..., 1::2] << np.uint8(4), scales


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
