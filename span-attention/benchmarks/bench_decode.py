"""Times of decode attention over spans: one JSON record per line on standard output.

Launches run inside CUDA graphs over as many layers as the L2 cache cannot hold. The first record is
what reading alone takes (a sum by torch); the last ones are a step of an engine: per layer of
Qwen2.5-7B an append and a decode, and the append alone. Needs torch and a GPU:
python span-attention/benchmarks/bench_decode.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import ml_dtypes
import torch
from span_attention import BatchDecode, Format, SpanLayout, Spans, append, decode
from spaninfer_kernel_launch import Gpu, Timing, get_gpu, record, time_launches

SPAN_LEN = 32
LAUNCHES, REPLAYS = 12, 9
STEP_LAYERS, STEP_LENGTH = 28, 592
STEP_REQUESTS = (1, 8, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests by their lengths, query and KV heads, how keys and values are stored."""

    lengths: tuple[int, ...]
    heads: int
    kv_heads: int
    format: Format = Format.BFLOAT16
    size: int = 128
    window: int = 0

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys, values and scales that one launch must read."""
        seen = [min(length, self.window or length) for length in self.lengths]
        row = 2 * (self.size * self.format.bits // 8 + 4 * self.format.num_scales)
        return sum(seen) * self.kv_heads * row

    def layout(self, layers: int) -> SpanLayout:
        """Return the layout of a cache of so many layers."""
        return SpanLayout.contiguous(
            span_len=SPAN_LEN,
            kv_heads=self.kv_heads,
            key_size=self.size,
            value_size=self.size,
            format=self.format,
            num_layers=layers,
        )


def batch(requests: int, heads: int, kv_heads: int, length: int, **other: object) -> Shape:
    """Return requests of one length."""
    return Shape((length,) * requests, heads, kv_heads, **other)  # type: ignore[arg-type]


LARGE = ((16, 32, 8, 4096), (64, 32, 8, 4096), (64, 28, 4, 4096), (256, 32, 8, 2048))
SHAPES = (
    *(batch(*sizes) for sizes in ((1, 28, 4, 8192), (1, 32, 8, 131_072), *LARGE)),
    batch(64, 32, 32, 2048),
    *(
        batch(*sizes, format=format)
        for format in (Format.FP8, Format.INT8, Format.UINT4)
        for sizes in LARGE
    ),
    Shape((65_536, *(1024,) * 63), 32, 8),
    Shape((65_536, *(1024,) * 63), 28, 4),
    batch(64, 8, 4, 4096, size=256),
    batch(64, 32, 8, 4096, size=64),
    batch(64, 32, 8, 32_768, window=1024),
)


def cache_of(shape: Shape, layout: SpanLayout, num_spans: int) -> torch.Tensor:
    """Return a cache of random numbers, those of codes about as large as 1."""
    if shape.format.num_scales == 0:
        numbers = torch.empty(
            num_spans * layout.span_bytes // 2, device="cuda", dtype=torch.bfloat16
        )
        return numbers.normal_().view(torch.uint8)
    cache = torch.randint(
        0, 256, (num_spans, layout.num_layers, layout.layer_bytes), device="cuda", dtype=torch.uint8
    )
    size = shape.kv_heads * SPAN_LEN * 4 * shape.format.num_scales
    for place in (layout.key_scales, layout.value_scales):
        assert place is not None
        numbers = cache[..., place.offset : place.offset + size].view(torch.float32)
        numbers[..., ::2] = 7 if shape.format is Format.UINT4 else 0
        numbers[..., shape.format.num_scales - 1 :: shape.format.num_scales] = 0.02
    return cache.view(-1)


Launches = Callable[[int, int], None]  # takes a stream, and the number of a launch


class Inputs:
    """Queries, tables in random order, and a cache of more layers than the L2 cache can hold."""

    def __init__(self, shape: Shape, gpu: Gpu, layers: int | None = None) -> None:
        self.shape, self.gpu = shape, gpu
        self.layers = layers or max(1, min(24, -(-8 * gpu.l2_bytes // shape.cache_bytes)))
        self.layout = shape.layout(self.layers)
        needed = [-(-length // SPAN_LEN) for length in shape.lengths]
        self.tables = torch.zeros(len(needed), max(needed), dtype=torch.int32, device="cuda")
        numbers = torch.randperm(sum(needed), device="cuda", dtype=torch.int32).split(needed)
        for row, spans in zip(self.tables, numbers, strict=True):
            row[: len(spans)] = spans
        self.cache = cache_of(shape, self.layout, sum(needed))
        self.lengths = torch.tensor(shape.lengths, dtype=torch.int32, device="cuda")
        sizes = (len(needed), shape.heads, shape.size)
        self.query = torch.randn(sizes, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.query)

    def time(self, tuning: decode.Tuning) -> tuple[Timing, Timing]:
        """Return what planning takes, and what a launch takes."""
        planning, launch = self.launches(tuning)
        planned = time_launches(planning, self.gpu, launches=LAUNCHES, replays=REPLAYS)
        return planned, time_launches(launch, self.gpu, launches=LAUNCHES, replays=REPLAYS)

    def time_step(self, tuning: decode.Tuning) -> tuple[Timing, Timing]:
        """Return what a layer's append takes, and its append and decode."""
        planning, launch = self.launches(tuning)
        appending = self.appends()

        def both(stream: int, number: int) -> None:
            if number == 0:
                planning(stream, 0)
            appending(stream, number)
            launch(stream, number)

        sizes = {"launches": self.layers, "replays": REPLAYS}
        return time_launches(appending, self.gpu, **sizes), time_launches(both, self.gpu, **sizes)

    def appends(self) -> Launches:
        """Return what appends the last token of each request, and makes the queries."""
        shape, rows = self.shape, len(self.shape.lengths)
        parts = [shape.heads * shape.size, shape.kv_heads * shape.size, shape.kv_heads * shape.size]
        qkv = torch.randn(rows, sum(parts), device="cuda", dtype=torch.bfloat16).split(parts, -1)
        angles = torch.rand(2, rows, shape.size // 2, device="cuda")
        last = self.lengths.long() - 1
        spans = self.tables.gather(1, (last // SPAN_LEN)[:, None])[:, 0]
        slot = (spans * SPAN_LEN + last % SPAN_LEN).int()
        step = append.prepare(
            append.AppendOptions(head_norm=False, dtype=ml_dtypes.bfloat16),
            self.layout,
            rows=rows,
            heads=shape.heads,
            gpu=self.gpu,
            row_strides=(sum(parts),) * 3,
        )

        def launch(stream: int, number: int) -> None:
            step.launch(
                *(*qkv, slot),
                spans=Spans(self.cache, self.layout, number % self.layers),
                rotary=append.Rotary(*angles, len=shape.size),
                out=self.query,
                stream=stream,
            )

        return launch

    def launches(self, tuning: decode.Tuning) -> tuple[Launches, Launches]:
        """Return what plans, and what decodes one layer after the other."""
        shape, dtype = self.shape, torch.bfloat16
        attention = BatchDecode(self.layout, num_heads=shape.heads, dtype=dtype, tuning=tuning)

        def planning(stream: int | None, _: int) -> None:
            window = shape.window or None
            attention.plan(self.lengths, self.tables, window=window, stream=stream)

        def launch(stream: int, number: int) -> None:
            attention.run(
                self.query,
                Spans(self.cache, self.layout, number % self.layers),
                softmax_scale=shape.size**-0.5,
                out=self.out,
                stream=stream,
            )

        planning(None, 0)
        torch.cuda.synchronize()
        return planning, launch


def measure(shape: Shape, gpu: Gpu) -> None:
    """Print the records of planning and of a launch."""
    inputs = Inputs(shape, gpu)
    tuning = decode.tune(inputs.layout, shape.heads, len(shape.lengths))
    for kernel, timing in zip(("decode plan", "decode"), inputs.time(tuning), strict=True):
        print(line(kernel, shape, tuning, timing, gpu), flush=True)


def measure_step(requests: int, gpu: Gpu) -> None:
    """Print the records of a layer of a step."""
    shape = batch(requests, 28, 4, STEP_LENGTH)
    inputs = Inputs(shape, gpu, STEP_LAYERS)
    tuning = decode.tune(inputs.layout, shape.heads, len(shape.lengths))
    for kernel, timing in zip(("append", "append, decode"), inputs.time_step(tuning), strict=True):
        print(line(kernel, shape, tuning, timing, gpu), flush=True)


def line(kernel: str, shape: Shape, tuning: decode.Tuning, timing: Timing, gpu: Gpu) -> str:
    """Return the record of one measurement."""
    lengths = shape.lengths
    return record(
        *(gpu, timing),
        bytes_moved=shape.cache_bytes if kernel.endswith("decode") else 0,
        kernel=kernel,
        requests=len(lengths),
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        size=shape.size,
        format=shape.format.label,
        longest=max(lengths),
        shortest=min(lengths),
        window=shape.window,
        tuning=repr(tuning),
    )


def measure_ceiling(gpu: Gpu) -> None:
    """Print how fast memory is read by a sum of torch."""
    x = torch.randn(1 << 29, device="cuda")
    times = []
    for _ in range(REPLAYS):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        x.sum()
        after.record()
        torch.cuda.synchronize()
        times.append(1e3 * before.elapsed_time(after))
    timing = Timing(median(times), min(times), max(times))
    print(record(gpu, timing, bytes_moved=4 * x.numel(), kernel="sum"), flush=True)


def main() -> None:
    """Measure every shape."""
    gpu = get_gpu()
    measure_ceiling(gpu)
    for shape in SHAPES:
        measure(shape, gpu)
        torch.cuda.empty_cache()
    for requests in STEP_REQUESTS:
        measure_step(requests, gpu)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
