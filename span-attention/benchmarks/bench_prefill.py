"""Times of prefill beside torch's attention in the same run: one JSON record per line.

Keys and values lie in spans of random order; torch reads them as plain tensors. Needs torch and a
GPU: python span-attention/benchmarks/bench_prefill.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from span_attention import BatchPrefill, Format, SpanLayout, Spans
from spaninfer_kernel_launch import Timing, get_gpu, record, time_launches
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

LAUNCHES, REPLAYS = 5, 9


@dataclass(frozen=True)
class Shape:
    """Slices of so many rows each, of contexts of `length` positions, and heads."""

    slices: int
    rows: int
    length: int
    heads: int
    kv_heads: int
    head_size: int = 128

    @property
    def flops(self) -> int:
        """Floating-point operations of the products whose results are seen."""
        seen = self.rows * (self.length - self.rows) + self.rows * (self.rows + 1) // 2
        return 4 * self.slices * self.heads * self.head_size * seen


SHAPES = (
    *(Shape(4, 4096, 4096, 32, 8), Shape(1, 16384, 16384, 32, 8), Shape(16, 1024, 1024, 28, 4)),
    *(Shape(1, rows, rows, 28, 4) for rows in (512, 4000, 8192)),
    *(Shape(1, 2048, length, 28, 4) for length in (4096, 6144, 8192)),
    *(Shape(1, rows, 4000, 28, 4) for rows in (40, 400, 1000)),
    *(Shape(1, 4096, 4096, 16, 8, size) for size in (64, 96, 256)),
)


class Inputs:
    """Queries, and keys and values in spans, of a shape."""

    def __init__(self, shape: Shape, span_len: int, format: Format) -> None:
        self.shape = shape
        self.layout = SpanLayout.contiguous(
            span_len=span_len,
            kv_heads=shape.kv_heads,
            key_size=shape.head_size,
            value_size=shape.head_size,
            format=format,
            num_layers=1,
        )
        per_slice = -(-shape.length // span_len)
        count = shape.slices * per_slice
        order = torch.randperm(count, device="cuda").int()
        self.tables = order.view(shape.slices, per_slice)
        size = count * self.layout.span_stride // 2
        self.cache = torch.randn(size, device="cuda", dtype=torch.bfloat16)
        total = shape.slices * shape.rows
        self.query = torch.randn(
            *(total, shape.heads, shape.head_size), device="cuda", dtype=torch.bfloat16
        )
        self.out = torch.empty_like(self.query)
        self.rows = torch.arange(shape.slices, device="cuda", dtype=torch.int32)
        self.bounds = torch.arange(shape.slices + 1, device="cuda", dtype=torch.int32) * shape.rows
        self.lengths = torch.full_like(self.rows, shape.length)


def ours(inputs: Inputs) -> Timing:
    """Return the time of one layer's launch, the plan made before."""
    attention, plan = planned(inputs, splits=True)
    plan(None, 0)
    torch.cuda.synchronize()
    return time_launches(
        lambda stream, _: attention.run(
            inputs.query,
            Spans(inputs.cache, inputs.layout),
            softmax_scale=inputs.shape.head_size**-0.5,
            out=inputs.out,
            stream=stream,
        ),
        get_gpu(),
        launches=LAUNCHES,
        replays=REPLAYS,
    )


def plan_alone(inputs: Inputs) -> Timing:
    """Return the time of making the plan."""
    _, plan = planned(inputs, splits=False)
    plan(None, 0)  # it allocates
    torch.cuda.synchronize()
    return time_launches(plan, get_gpu())


def planned(
    inputs: Inputs, *, splits: bool
) -> tuple[BatchPrefill, Callable[[int | None, int], None]]:
    """Return the attention of these inputs, and what plans it."""
    heads, dtype = inputs.shape.heads, torch.bfloat16
    attention = BatchPrefill(inputs.layout, num_heads=heads, dtype=dtype, splits=splits)

    def plan(stream: int | None, _: int) -> None:
        attention.plan(
            inputs.bounds,
            inputs.lengths,
            inputs.tables,
            table_rows=inputs.rows,
            num_tokens=len(inputs.query),
            stream=stream,
        )

    return attention, plan


def torchs(shape: Shape, backend: SDPBackend) -> Timing:
    """Return the time of torch's attention over plain tensors of the same sizes."""
    sizes = ((shape.heads, shape.rows), (shape.kv_heads, shape.length))
    query, key = (
        torch.randn(
            *(shape.slices, length, heads, shape.head_size), device="cuda", dtype=torch.bfloat16
        ).transpose(1, 2)
        for heads, length in sizes
    )
    value = torch.randn_like(key)
    square = shape.rows == shape.length
    mask = None if square else causal_lower_right(shape.rows, shape.length)

    def launch(stream: int, _: int) -> None:
        own = torch.cuda.ExternalStream(stream)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(own), sdpa_kernel(backend):
            torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=square, enable_gqa=True
            )

    launch(torch.cuda.current_stream().cuda_stream, 0)
    torch.cuda.synchronize()
    return time_launches(launch, get_gpu(), launches=LAUNCHES, replays=REPLAYS)


def report(shape: Shape, which: str, measure: Callable[[], Timing]) -> None:
    """Print the record of one measurement, or why there is none."""
    try:
        timing = measure()
    except RuntimeError as refused:
        print(f'{{"kernel": "{which}", "refused": "{str(refused).splitlines()[0]}"}}', flush=True)
        return
    both = shape.slices * (shape.rows * shape.heads + shape.length * shape.kv_heads)
    moved = 2 * 2 * both * shape.head_size
    tflops = round(shape.flops / timing.us / 1e6, 1)
    sizes = {name: getattr(shape, name) for name in shape.__dataclass_fields__}
    line = record(get_gpu(), timing, bytes_moved=moved, kernel=which, **sizes, tflops=tflops)
    print(line, flush=True)


def main() -> None:
    """Measure every shape: ours, the plan, flash attention 2 and cuDNN through torch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--span-len", type=int, default=32)
    span_len = parser.parse_args().span_len
    for shape in SHAPES:
        inputs = Inputs(shape, span_len, Format.BFLOAT16)
        report(shape, "prefill", partial(ours, inputs))
        report(shape, "prefill plan", partial(plan_alone, inputs))
        for name, backend in (
            ("torch flash", SDPBackend.FLASH_ATTENTION),
            ("torch cudnn", SDPBackend.CUDNN_ATTENTION),
        ):
            report(shape, name, partial(torchs, shape, backend))


if __name__ == "__main__":
    main()
