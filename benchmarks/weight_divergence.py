"""Divergence of the bundled model's next-token distributions under weight quantisation, and sizes.

Answers that the model itself wrote are read again on the CPU, each in one step, with weights in
every format that `--quantize` makes, and compared with those in float32. One JSON record per format
on standard output; `plot.py` draws them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import spaninfer_demo
from numpy.typing import NDArray
from spaninfer.bench.cpu.divergence import TOKENS, logits_of, texts
from spaninfer_engine.config import QuantizeGroup
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.load.packed.packing import CPU_GROUPED
from spaninfer_kernels_cpu import Format, Layout

Array = NDArray[Any]

GROUPS: tuple[QuantizeGroup, ...] = (32, 64, 128)


def formats() -> Iterator[tuple[str, dict[str, Any], Format]]:
    """Yield names, fields of EngineConfig, and formats of weights."""
    yield "bfloat16", {"quantize": "bfloat16"}, Format("bfloat16")
    for kind in CPU_GROUPED:
        for group in GROUPS:
            asked = {"quantize": kind, "quantize_group": group}
            yield f"{kind} g{group}", asked, Format(kind, group)


def log_probabilities(**asked: Any) -> list[Array]:
    """Return [T V] of each text."""
    each = logits_of(texts(), TOKENS, backend="cpu", dtype="float32", **asked)
    return list(map(as_log_probabilities, each))


def as_log_probabilities(logits: Array) -> Array:
    """Return the logarithm of softmax(logits[T V]), in float64."""
    wide = np.float64(logits) - logits.max(-1, keepdims=True)
    log: Array = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return log


def figures(exact: list[Array], found: list[Array]) -> dict[str, Any]:
    """Return the divergence of log-probabilities [T V] of each text from exact ones, in nats."""
    pairs = list(zip(exact, found, strict=True))
    each = [(np.exp(p) * (p - q)).sum(-1) for p, q in pairs]
    means, divergence = np.array([one.mean() for one in each]), np.concatenate(each)
    same = np.concatenate([p.argmax(-1) == q.argmax(-1) for p, q in pairs])
    return {
        "kl": float(divergence.mean()),
        "standard_error": float(means.std() / len(means) ** 0.5),
        "p99_kl": float(np.quantile(divergence, 0.99)),
        "same_token": float(same.mean()),
        "tokens": len(divergence),
    }


def mebibytes(format: Format) -> float:
    """Return what the bundled model's matrices take in a format."""
    with open_checkpoint(spaninfer_demo.path()) as checkpoint:
        read = checkpoint.reader.read
        shapes = [np.asarray(read(name)).shape for name in checkpoint.reader.names]
    sizes = [Layout(format, *shape) for shape in shapes if len(shape) == 2]
    return sum(each.panels * each.panel_bytes for each in sizes) / 2**20


def main() -> None:
    """Print the divergence of each format."""
    exact = log_probabilities()
    for name, asked, format in formats():
        size = {
            "bits": Layout(format, 64, 1024).panel_bytes * 8 / (64 * 1024),
            "mebibytes": round(mebibytes(format), 2),
        }
        about = {"benchmark": "weight divergence", "format": name, **size}
        print(json.dumps(about | figures(exact, log_probabilities(**asked))), flush=True)


if __name__ == "__main__":
    main()
