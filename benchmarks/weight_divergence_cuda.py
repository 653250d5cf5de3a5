"""The measurements of `weight_divergence.py`, for the weight formats of backend `cuda`.

The bundled model reads its answers on a GPU, each in one step, and a few tokens in a step. Each
format is measured with the head rounded like other weights, as `--quantize` does, and with it in 16
bits (`--keep-head`), as most published files have it. One JSON record per line on standard output.

Needs torch and a GPU: python benchmarks/weight_divergence_cuda.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import spaninfer_demo
import torch
from spaninfer.bench.cpu.divergence import TOKENS, texts
from spaninfer_engine import EngineConfig
from spaninfer_engine.backends.cuda.backend import CudaBackend
from spaninfer_engine.backends.cuda.ops import CudaOps
from spaninfer_engine.backends.cuda.start import CudaStart
from spaninfer_engine.backends.cuda.weights.packing import WeightForms
from spaninfer_engine.backends.cuda.weights.quantised import format_of_packing
from spaninfer_engine.backends.cuda.weights.scaled import codes_of_packing
from spaninfer_engine.backends.rounded_weights import rounded_format
from spaninfer_engine.backends.start import BoundModel
from spaninfer_engine.cache.memory_plan import Demand
from spaninfer_engine.config import Quantize, QuantizeGroup
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.load.packed.packing import packing_of
from spaninfer_engine.program.bind import bind_packed
from spaninfer_engine.program.lower import lower
from spaninfer_engine.program.packer import Packer
from spaninfer_engine.startup.build import silent
from spaninfer_engine.startup.limits import SPAN_LEN
from spaninfer_engine.startup.model import resolve_decoder
from spaninfer_engine.tools.logits import logits_by
from weight_divergence import Array, as_log_probabilities, figures, log_probabilities

Head = Literal["same", "16 bits"]

FORMATS: tuple[tuple[Quantize | None, QuantizeGroup | None], ...] = (
    (None, None), ("fp8", None), ("w8a8", None), ("int8", "row"), ("int8", 32),
    ("int4", 32), ("int4", 64), ("int4", 128), ("w4afp8", 32), ("w4afp8", 64), ("w4afp8", 128),
    ("int6", 32), ("int5", 32), ("int3.5", 32), ("int3", 32), ("int2", 32),
)  # fmt: skip
FEW = 16  # tokens of a step, whose products are other kernels


def on_gpu(
    rows: int, quantize: Quantize | None, group: QuantizeGroup | None, head: Head
) -> Iterator[Array]:
    """Yield the log-probabilities [T V] of each text, `rows` tokens in a step."""
    packing = packing_of(quantize, group)
    with open_checkpoint(spaninfer_demo.path()) as checkpoint:
        decoder = resolve_decoder(EngineConfig(model=spaninfer_demo.path()), checkpoint)
        rounded = codes_of_packing(packing) or format_of_packing(packing) or rounded_format(packing)
        ops = CudaOps("bfloat16", "cuda", decoder.groups, weights=WeightForms(rounded))
        kept = {decoder.head.linear.weight.name} if head == "16 bits" else ()
        bound = bind_packed(lower(decoder), ops, Packer(ops, checkpoint.reader, kept))
    most = -(-TOKENS // SPAN_LEN) * SPAN_LEN
    start = CudaStart(
        BoundModel(bound, ops, decoder, lambda: bound),
        Demand(most, 8, most),
        span_len=SPAN_LEN,
        graphs=False,
        tuning=CudaBackend.tuning,
    )

    start.measure(silent)  # compiles what is missing, side by side

    def device(setup: Any) -> Any:
        made: Any = start.device(setup, silent)
        made.reports_prompts = False  # logits go to the host
        return made

    yield from map(as_log_probabilities, logits_by(device, decoder, texts(), rows))


def main() -> None:
    """Print the divergence of each format."""
    exact, device = log_probabilities(), torch.cuda.get_device_name()
    for quantize, group in FORMATS:
        cases: list[tuple[int, Head]] = [(TOKENS, "same"), (FEW, "same")]
        if quantize is not None:
            cases.append((TOKENS, "16 bits"))
        for rows, head in cases:
            found = figures(exact, list(on_gpu(rows, quantize, group, head)))
            about = {"format": quantize or "bfloat16", "group": group, "rows": rows, "head": head}
            record = {"benchmark": "weight divergence on a GPU", **about, **found, "device": device}
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
