"""Times of latent attention over spans: one JSON record per line on standard output.

Launches run inside CUDA graphs over as many layers as the L2 cache cannot hold. `limit` is the time
that the bytes take at 4.3 TB/s or the products at 790 TFLOP/s, whichever is longer (H200). Needs
torch and a GPU: python span-attention/benchmarks/bench_mla.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from span_attention import BatchMLA, Format, SpanLayout, Spans
from spaninfer_kernel_launch import Gpu, get_gpu, record, time_launches

SPAN_LEN, KEY_SIZE, VALUE_SIZE = 32, 576, 512
LAUNCHES, REPLAYS = 12, 9
BYTES_PER_US, FLOPS_PER_US = 4.3e6, 790e6


@dataclass(frozen=True, slots=True)
class Shape:
    """Slices of a step by new tokens and length; query heads."""

    slices: tuple[tuple[int, int], ...]
    heads: int

    @property
    def cache_bytes(self) -> int:
        """Bytes of latents that one launch must read."""
        return sum(length for _, length in self.slices) * KEY_SIZE * 2

    @property
    def flops(self) -> int:
        """Operations of the products of one launch, masked ones not counted."""
        seen = sum(n * length - n * (n - 1) // 2 for n, length in self.slices)
        return 2 * self.heads * (KEY_SIZE + VALUE_SIZE) * seen

    @property
    def limit_us(self) -> float:
        """Time that bytes or products take at the least."""
        return max(self.cache_bytes / BYTES_PER_US, self.flops / FLOPS_PER_US)


def batch(requests: int, length: int, heads: int, tokens: int = 1) -> Shape:
    """Return requests of one length, with so many new tokens each."""
    return Shape(((tokens, length),) * requests, heads)


SHAPES = (
    *(batch(128, 4096, heads) for heads in (16, 64, 128)),
    *(batch(requests, length, 16) for requests, length in ((64, 600), (64, 4096), (8, 4096))),
    *(batch(1, length, heads) for length in (4096, 65_536) for heads in (16, 128)),
    batch(128, 4096, 16, tokens=2),
    batch(128, 4096, 128, tokens=2),
    Shape(tuple((4, length) for length in (4641, 45_118, 1730, 1696)), 16),  # ThunderMLA's
    Shape(((4096, 4096),), 16),
    Shape(((1024, 1024),), 128),
)

Launches = Callable[[int, int], None]  # takes a stream, and the number of a launch


def launches(shape: Shape, gpu: Gpu) -> tuple[Launches, Launches]:
    """Return what plans, and what attends one layer after the other."""
    layers = max(1, min(24, -(-8 * gpu.l2_bytes // shape.cache_bytes)))
    layout = SpanLayout.contiguous(
        span_len=SPAN_LEN,
        kv_heads=1,
        key_size=KEY_SIZE,
        value_size=VALUE_SIZE,
        format=Format.BFLOAT16,
        num_layers=layers,
        values_in_keys=True,
    )
    needed = [-(-length // SPAN_LEN) for _, length in shape.slices]
    tables = torch.zeros(len(needed), max(needed), dtype=torch.int32, device="cuda")
    numbers = torch.randperm(sum(needed), device="cuda", dtype=torch.int32).split(needed)
    for row, spans in zip(tables, numbers, strict=True):
        row[: len(spans)] = spans
    size = sum(needed) * layout.span_bytes // 2
    cache = torch.empty(size, device="cuda", dtype=torch.bfloat16).normal_()
    starts = [0, *accumulate(tokens for tokens, _ in shape.slices)]
    bounds = torch.tensor(starts, dtype=torch.int32, device="cuda")
    lengths = torch.tensor([n for _, n in shape.slices], dtype=torch.int32, device="cuda")
    rows = torch.arange(len(needed), dtype=torch.int32, device="cuda")
    query = torch.randn(starts[-1], shape.heads, KEY_SIZE, device="cuda").bfloat16()
    out = query.new_empty(starts[-1], shape.heads, VALUE_SIZE)
    attention = BatchMLA(layout, num_heads=shape.heads, dtype=torch.bfloat16)

    def planning(stream: int | None, _: int) -> None:
        attention.plan(
            bounds, lengths, tables, table_rows=rows, num_tokens=starts[-1], stream=stream
        )

    def launch(stream: int, number: int) -> None:
        spans = Spans(cache, layout, number % layers)
        attention.run(query, spans, softmax_scale=192**-0.5, out=out, stream=stream)

    planning(None, 0)
    torch.cuda.synchronize()
    return planning, launch


def measure(shape: Shape, gpu: Gpu) -> None:
    """Print the records of planning and of a launch."""
    for kernel, work in zip(("mla plan", "mla"), launches(shape, gpu), strict=True):
        timing = time_launches(work, gpu, launches=LAUNCHES, replays=REPLAYS)
        line = record(
            *(gpu, timing),
            bytes_moved=shape.cache_bytes if kernel == "mla" else 0,
            kernel=kernel,
            requests=len(shape.slices),
            tokens=sum(tokens for tokens, _ in shape.slices),
            heads=shape.heads,
            longest=max(length for _, length in shape.slices),
            limit_us=round(shape.limit_us, 1),
            flops=shape.flops,
        )
        print(line, flush=True)


def main() -> None:
    """Measure every shape."""
    gpu = get_gpu()
    for shape in SHAPES:
        measure(shape, gpu)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
