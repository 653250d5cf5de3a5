"""Time a decode of sparse attention beside dense attention to the same latents: JSON lines.

    python benchmarks/bench_sparse_attention.py

One record per length of the context, in the sizes of DeepSeek-V3.2: 64 heads of an indexer over
keys of 128 channels, 2048 keys selected, 128 heads over latents of 512 + 64. CPU time of all
threads in milliseconds, the median of turns in which dense and sparse follow each other.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
from spaninfer_kernels_cpu import AttentionBatch, Scores, attend, select_keys

LENGTHS = (2_048, 8_192, 32_768)
TOP_K, INDEX_HEADS, INDEX_SIZE = 2048, 64, 128
HEADS, LATENT, ROTATED = 128, 512, 64
SPAN_LEN, TURNS = 32, 7


def main() -> None:
    """Print a record per length."""
    for length in LENGTHS:
        print(json.dumps(measure(length)), flush=True)


def measure(length: int) -> dict[str, float]:
    """Return the milliseconds of the parts of one decode behind `length` - 1 tokens."""
    rng = np.random.default_rng(0)
    spans = -(-length // SPAN_LEN)

    def spans_of(size: int) -> np.ndarray:
        keys = rng.standard_normal((spans, SPAN_LEN, 1, size), dtype=np.float32)
        return keys.astype(ml_dtypes.bfloat16)

    index, latents = spans_of(INDEX_SIZE), spans_of(LATENT + ROTATED)
    batch = AttentionBatch(
        rng.permutation(spans).astype(np.int32)[None],
        np.zeros(1, np.int32),
        np.array([length - 1], np.int32),
    )
    index_query = rng.standard_normal((1, INDEX_HEADS, INDEX_SIZE), dtype=np.float32)
    weights = rng.standard_normal((1, INDEX_HEADS), dtype=np.float32)
    query = rng.standard_normal((1, HEADS, LATENT + ROTATED), dtype=np.float32)
    selected, out = np.empty((1, TOP_K), np.int32), np.empty((1, HEADS, LATENT), np.float32)
    operands = query, latents, latents[..., :LATENT]

    def select() -> None:
        select_keys(index_query, weights, index, batch, out=selected)

    def sparse() -> None:
        attend(*operands, replace(batch, selected=selected), Scores(0.04), out=out)

    def dense() -> None:
        attend(*operands, batch, Scores(0.04), out=out)

    parts = {"select": select, "attend_selected": sparse, "dense": dense}
    times: dict[str, list[float]] = {name: [] for name in parts}
    for part in parts.values():
        part()  # compiles
    for _ in range(TURNS):
        for name, part in parts.items():
            times[name].append(_milliseconds(part))
    found = {name: round(statistics.median(each), 2) for name, each in times.items()}
    return {"length": length, **found}


def _milliseconds(part: Callable[[], None]) -> float:
    start = time.process_time()
    part()
    return (time.process_time() - start) * 1e3


if __name__ == "__main__":
    main()
