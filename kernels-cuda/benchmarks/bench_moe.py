"""Times of whole expert layers with random routing: one JSON record per line.

Weights are bfloat16, codes of 4 bits, e4m3 or e2m1; router logits are given. Choice, sort, both
products and the weighted sum with the residual are timed inside a CUDA graph. Every launch has
tokens and logits of its own, so that the L2 cache does not hold the experts of a few. `of_limit` is
the time of reading the experts that are used, or of multiplying, whichever is longer, over the time
measured.

Needs torch and a GPU: python kernels-cuda/benchmarks/bench_moe.py
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import ml_dtypes
import torch
from spaninfer_kernel_launch import get_gpu, record, time_launches
from spaninfer_kernels_cuda import moe
from spaninfer_kernels_cuda.quantized_gemm import BLOCK_ROWS, CHUNK, QuantizedFormat

TOKENS = (1, 2, 4, 8, 16, 64, 256, 512, 1024, 4096, 16_384)
READ_BYTES_PER_US, FLOP_PER_US = 4.3e6, 790e6  # an H200 reads and multiplies at most so fast
MAX_TOKENS = 1 << 15  # of all launches of a graph


@dataclass(frozen=True)
class Layer:
    """An expert layer of a published model: experts, how many see a token, channels, inner ones.

    `shared` experts of the same width see every token.
    """

    name: str
    experts: int
    top_k: int
    channels: int
    inner: int
    shared: int = 0

    def bytes_of(self, used: float, format: QuantizedFormat | None) -> float:
        """Return the bytes of `used` experts."""
        numbers = 3 * self.channels * self.inner * used
        return numbers * (2 if format is None else format.record_bytes / (BLOCK_ROWS * CHUNK))

    def limit_us(self, used: float, tokens: int, format: QuantizedFormat | None) -> float:
        """Return the time that reading `used` experts, or multiplying, takes at least."""
        flop = 6.0 * tokens * (self.top_k + self.shared) * self.channels * self.inner
        return max(self.bytes_of(used, format) / READ_BYTES_PER_US, flop / FLOP_PER_US)


FORMATS = {
    "bfloat16": None,
    "int4 of 128": QuantizedFormat(4, 128, "zero"),
    "e4m3 of 128": QuantizedFormat(8, 128, values="e4m3"),
    "e2m1 of 32": QuantizedFormat(4, 32, values="e2m1"),
}
LAYERS = (
    Layer("Qwen3-30B-A3B", 128, 8, 2048, 768),
    Layer("gpt-oss-20b", 32, 4, 2880, 2880),
    Layer("DeepSeek-V2-Lite", 64, 6, 2048, 1408),
    Layer("DeepSeek-V2-Lite, shared ones too", 64, 6, 2048, 1408, shared=2),
    Layer("Mixtral-8x7B", 8, 2, 4096, 14_336),
)


def main() -> None:
    """Print a record per layer and number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="*", default=TOKENS)
    parser.add_argument("--weights", nargs="*", choices=FORMATS, default=list(FORMATS))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    for layer in LAYERS:
        for name in arguments.weights:
            experts = _experts(layer, FORMATS[name])
            for tokens in arguments.tokens:
                _time(layer, tokens, name, experts)
            del experts


def _experts(layer: Layer, format: QuantizedFormat | None) -> moe.Experts:
    experts = layer.experts + layer.shared
    up = experts, 2 * layer.inner, layer.channels
    down = experts, layer.channels, layer.inner
    if format is None:
        return moe.Experts(*(_random(*each, spread=each[-1] ** -0.5) for each in (up, down)))
    (w13, f13), (w2, f2) = _codes(up, format), _codes(down, format)
    return moe.Experts(w13, w2, f13=f13, f2=f2)


def _codes(
    shape: tuple[int, int, int], format: QuantizedFormat
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random codes and small scales; zero points are 0."""
    experts, outputs, inner = shape
    blocks, *rest = format.records(outputs, inner)
    records = torch.randint(0, 256, (experts, blocks, *rest), dtype=torch.uint8, device="cuda")
    records[..., format.code_bytes :].view(torch.int16).fill_(0)
    scales = records[..., format.code_bytes :][..., : 2 * BLOCK_ROWS * format.scale_groups]
    scales.view(torch.float16).fill_(inner**-0.5)
    return records, torch.ones(experts, blocks * BLOCK_ROWS, device="cuda")


def _random(*shape: int, spread: float = 1.0) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(std=spread)


def _time(layer: Layer, tokens: int, weights: str, experts: moe.Experts) -> None:
    launches, format = max(1, min(20, MAX_TOKENS // tokens)), FORMATS[weights]
    x = _random(launches, tokens, layer.channels)
    logits = torch.randn(launches, tokens, layer.experts, device="cuda")
    step = moe.prepare(
        moe.MoeShape(tokens, layer.top_k + layer.shared, layer.channels, layer.inner),
        moe.RouteOptions(layer.top_k, normalise=True, shared=layer.shared),
        experts=layer.experts + layer.shared,
        act="silu",
        dtype=ml_dtypes.bfloat16,
        gpu=get_gpu(),
        formats=None if format is None else moe.Formats(format, format),
    )
    workspace = torch.empty(step.workspace_bytes, dtype=torch.uint8, device="cuda")
    ticket = torch.zeros(1, dtype=torch.int32, device="cuda")
    out = _random(tokens, layer.channels)

    def launch(stream: int, number: int) -> None:
        step.launch(
            *(x[number], logits[number], experts),
            out=out,
            residual=out,
            workspace=workspace,
            ticket=ticket,
            stream=stream,
        )

    timing = time_launches(launch, get_gpu(), launches=launches)
    chosen = logits.topk(layer.top_k, -1).indices.flatten(1)
    used = layer.shared + sum(len(each.unique()) for each in chosen) / launches
    limit = layer.limit_us(used, tokens, format)
    line = record(
        *(get_gpu(), timing),
        bytes_moved=int(layer.bytes_of(used, format)),
        kernel="moe",
        layer=layer.name,
        weights=weights,
        tokens=tokens,
        limit_us=round(limit, 1),
        of_limit=round(limit / timing.us, 3),
    )
    print(line, flush=True)


if __name__ == "__main__":
    main()
