"""Divergence of the bundled model's next-token distributions under published weight formats.

The same answers as in `weight_divergence.py`, read by the model whose matrices are rounded to each
format and then multiplied in float32: the error of weights alone, whatever a backend does to
activations. GGUF files round the embedding too, which is the head here; others leave it in 16 bits.
One JSON record per format on standard output; `plot.py` draws them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import spaninfer_demo
from published_formats import FORMATS, Published
from safetensors.numpy import save_file
from spaninfer.bench.cpu.divergence import TOKENS, texts
from spaninfer_engine import EngineConfig, tools
from spaninfer_engine.load import open_checkpoint
from weight_divergence import Array, as_log_probabilities, figures, log_probabilities


def is_rounded(name: str, array: Array, format: Published) -> bool:
    """Return True for a matrix of the decoder, and for its embedding where the format takes it."""
    if array.ndim != 2 or "language_model" not in name:
        return False
    return format.rounds_head or "embed_tokens" not in name


def write_rounded(folder: Path, format: Published) -> dict[str, float]:
    """Write the bundled model with rounded numbers in float32; return what describes its size."""
    source = spaninfer_demo.path()
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    bits, error, size = 0.0, 0.0, 0.0
    tensors: dict[str, Array] = {}
    with open_checkpoint(source) as checkpoint:
        for name in checkpoint.reader.names:
            array = np.float32(checkpoint.reader.read(name))
            if is_rounded(name, array, format):
                tensors[name] = np.ascontiguousarray(format.round(array), np.float32)
                bits += format.bits * array.size
                error += float(((tensors[name] - array) ** 2).sum())
                size += float((array**2).sum())
            else:
                tensors[name] = array
                bits += 16 * array.size if "language_model" in name and array.ndim == 2 else 0
    save_file(tensors, folder / "model.safetensors")
    return {
        "bits": format.bits,
        "mebibytes": round(bits / 8 / 2**20, 2),
        "weight_error": round((error / size) ** 0.5, 5),
    }


def of_format(format: Published) -> tuple[dict[str, float], list[Array]]:
    """Return what describes the size, and the log-probabilities [T V] of each text."""
    with TemporaryDirectory() as home:
        folder = Path(home, "model")
        size = write_rounded(folder, format)
        asked = EngineConfig(model=folder, backend="cpu", dtype="float32")
        return size, list(map(as_log_probabilities, tools.logits_of(asked, texts(), TOKENS)))


def print_divergence(benchmark: str, formats: Sequence[Published]) -> None:
    """Print the divergence of each format."""
    exact = log_probabilities()
    for format in formats:
        size, found = of_format(format)
        about = {"benchmark": benchmark, "format": format.name, **size}
        record = about | {"rounds_head": format.rounds_head} | figures(exact, found)
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    print_divergence("published divergence", FORMATS)
