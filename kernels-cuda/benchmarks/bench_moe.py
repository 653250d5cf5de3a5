"""Times of whole expert layers with random routing: one JSON record per line.

Router logits are given; choice, sort, both products and the weighted sum with the residual are
timed inside a CUDA graph. Every launch has tokens and logits of its own, so that the L2 cache does
not hold the experts of a few. `of_limit` is the time of reading the experts that are used, or of
multiplying, whichever is longer, over the time measured.

Needs torch and a GPU: python kernels-cuda/benchmarks/bench_moe.py
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import ml_dtypes
import torch
from spaninfer_kernel_launch import get_gpu, record, time_launches
from spaninfer_kernels_cuda import moe

TOKENS = (1, 2, 4, 8, 16, 64, 256, 512, 1024, 4096, 16_384)
READ_BYTES_PER_US, FLOP_PER_US = 4.3e6, 790e6  # an H200 reads and multiplies at most so fast
MOST_TOKENS = 1 << 15  # of all launches of a graph


@dataclass(frozen=True)
class Layer:
    """An expert layer of a published model: experts, how many see a token, channels, inner ones."""

    name: str
    experts: int
    top_k: int
    channels: int
    inner: int

    def limit_us(self, used: float, tokens: int) -> float:
        """Return the time that reading `used` experts, or multiplying, takes at least."""
        numbers = 3 * self.channels * self.inner  # of an expert
        flop = 2.0 * tokens * self.top_k * numbers
        return max(2 * numbers * used / READ_BYTES_PER_US, flop / FLOP_PER_US)


LAYERS = (
    Layer("Qwen3-30B-A3B", 128, 8, 2048, 768),
    Layer("DeepSeek-V2-Lite", 64, 6, 2048, 1408),
    Layer("Mixtral-8x7B", 8, 2, 4096, 14_336),
)


def main() -> None:
    """Print a record per layer and number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="*", default=TOKENS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    for layer in LAYERS:
        experts = moe.Experts(
            _random(layer.experts, 2 * layer.inner, layer.channels, spread=layer.channels**-0.5),
            _random(layer.experts, layer.channels, layer.inner, spread=layer.inner**-0.5),
        )
        for tokens in arguments.tokens:
            _time(layer, tokens, experts)
        del experts


def _random(*shape: int, spread: float = 1.0) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(std=spread)


def _time(layer: Layer, tokens: int, experts: moe.Experts) -> None:
    launches = max(1, min(20, MOST_TOKENS // tokens))
    x = _random(launches, tokens, layer.channels)
    logits = torch.randn(launches, tokens, layer.experts, device="cuda")
    step = moe.prepare(
        moe.MoeShape(tokens, layer.top_k, layer.channels, layer.inner),
        moe.RouteOptions(layer.top_k, normalise=True),
        experts=layer.experts,
        act="silu",
        dtype=ml_dtypes.bfloat16,
        gpu=get_gpu(),
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
    used = sum(len(each.unique()) for each in chosen) / launches
    limit = layer.limit_us(used, tokens)
    line = record(
        *(get_gpu(), timing),
        bytes_moved=int(6 * layer.channels * layer.inner * used),
        kernel="moe",
        layer=layer.name,
        tokens=tokens,
        limit_us=round(limit, 1),
        of_limit=round(limit / timing.us, 3),
    )
    print(line, flush=True)


if __name__ == "__main__":
    main()
