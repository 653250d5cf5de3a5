"""Times of sparse attention over spans: one JSON record per line on standard output.

Launches run inside CUDA graphs over as many layers as the L2 cache cannot hold. `limit` is the time
that the bytes take at 4.3 TB/s or the products at 790 TFLOP/s, whichever is longer (H200). Needs
torch and a GPU: python span-attention/benchmarks/bench_sparse.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from span_attention import BatchSelected, Format, Readers, SpanLayout, Spans, select_keys
from spaninfer_kernel_launch import Gpu, get_gpu, record, time_launches

SPAN_LEN, TOP_K = 32, 2048
INDEX_SIZE, INDEX_HEADS = 128, 64
KEY_SIZE, VALUE_SIZE = 576, 512
LAUNCHES, REPLAYS = 12, 9
BYTES_PER_US, FLOPS_PER_US = 4.3e6, 790e6


@dataclass(frozen=True, slots=True)
class Shape:
    """Decodes of one length, or the last tokens of one prompt of it."""

    tokens: int
    length: int
    heads: int = 128
    is_prompt: bool = False

    @property
    def sequences(self) -> int:
        """Rows of the span tables."""
        return 1 if self.is_prompt else self.tokens

    @property
    def key_bytes(self) -> int:
        """Bytes of an indexer's keys that one launch must read."""
        return 2 * INDEX_SIZE * self.sequences * self.length

    @property
    def latent_bytes(self) -> int:
        """Bytes of selected latents; those of a prompt are in L2."""
        return 2 * KEY_SIZE * self.sequences * min(TOP_K, self.length)

    @property
    def index_flops(self) -> int:
        """Operations of an indexer's products."""
        return 2 * INDEX_SIZE * INDEX_HEADS * self.tokens * self.length

    @property
    def flops(self) -> int:
        """Operations of the attention's products."""
        return 2 * (KEY_SIZE + VALUE_SIZE) * self.heads * self.tokens * min(TOP_K, self.length)


SHAPES = (
    Shape(1, 131_072),
    Shape(64, 32_768),
    *(Shape(1, length) for length in (8192, 32_768)),
    *(Shape(tokens, 8192) for tokens in (8, 64, 128)),
    Shape(64, 32_768, heads=64),
    Shape(1024, 32_768, is_prompt=True),
)

Launch = Callable[[int | None, int], None]  # takes a stream, and the number of a launch


class Step:
    """A step of one shape: tables, and what selects and attends."""

    def __init__(self, shape: Shape, gpu: Gpu) -> None:
        self.shape, self.l2_bytes = shape, gpu.l2_bytes
        self.columns = -(-shape.length // SPAN_LEN)
        order = torch.randperm(shape.sequences * self.columns, device="cuda").int()
        tables = order.view(shape.sequences, -1)
        last = torch.arange(shape.length - shape.tokens, shape.length, device="cuda") + 1
        lengths = last if shape.is_prompt else torch.full_like(last, shape.length)
        rows = torch.arange(shape.tokens, device="cuda") * (not shape.is_prompt)
        self.readers = Readers(tables, rows.int(), lengths.int(), shape.is_prompt)
        self.selected = torch.empty(shape.tokens, TOP_K, dtype=torch.int32, device="cuda")

    def cache(self, key_size: int, value_size: int, read: int) -> tuple[Spans, ...]:
        """Return the spans of as many layers as L2 cannot hold, `read` bytes of each."""
        layers = max(1, min(8, -(-4 * self.l2_bytes // read)))
        layout = SpanLayout.contiguous(
            span_len=SPAN_LEN,
            kv_heads=1,
            key_size=key_size,
            value_size=value_size,
            format=Format.BFLOAT16,
            num_layers=layers,
            values_in_keys=True,
        )
        size = self.shape.sequences * self.columns * layout.span_bytes // 2
        memory = torch.empty(size, device="cuda", dtype=torch.bfloat16).normal_()
        return tuple(Spans(memory, layout, layer) for layer in range(layers))

    def selecting(self) -> Launch:
        """Return what selects for one layer after the other."""
        spans = self.cache(INDEX_SIZE, INDEX_SIZE, self.shape.key_bytes)
        query = torch.randn(self.shape.tokens, INDEX_HEADS, INDEX_SIZE, device="cuda").bfloat16()
        weights = torch.randn(self.shape.tokens, INDEX_HEADS, device="cuda")

        def launch(stream: int | None, number: int) -> None:
            at = spans[number % len(spans)]
            out = self.selected
            select_keys(query, weights, at, self.readers, top_k=TOP_K, out=out, stream=stream)

        launch(None, 0)  # what attention then reads
        torch.cuda.synchronize()
        return launch

    def attending(self) -> Launch:
        """Return what attends in one layer after the other."""
        spans = self.cache(KEY_SIZE, VALUE_SIZE, self.shape.latent_bytes)
        tokens, heads = self.shape.tokens, self.shape.heads
        attention = BatchSelected(spans[0].layout, num_heads=heads, dtype=torch.bfloat16)
        attention.plan(self.readers, top_k=TOP_K)
        torch.cuda.synchronize()
        query = torch.randn(tokens, heads, KEY_SIZE, device="cuda").bfloat16()
        out = query.new_empty(tokens, heads, VALUE_SIZE)

        def launch(stream: int | None, number: int) -> None:
            at, scale = spans[number % len(spans)], 192**-0.5
            attention.run(query, at, self.selected, softmax_scale=scale, out=out, stream=stream)

        return launch


def measure(shape: Shape, gpu: Gpu) -> None:
    """Print the records of selection and attention."""
    step = Step(shape, gpu)
    for kernel, make, num_bytes, flops in (
        ("select_keys", step.selecting, shape.key_bytes, shape.index_flops),
        ("attend_selected", step.attending, shape.latent_bytes, shape.flops),
    ):
        timing = time_launches(make(), gpu, launches=LAUNCHES, replays=REPLAYS)
        line = record(
            *(gpu, timing),
            bytes_moved=num_bytes,
            kernel=kernel,
            tokens=shape.tokens,
            length=shape.length,
            heads=INDEX_HEADS if kernel == "select_keys" else shape.heads,
            prompt=shape.is_prompt,
            limit_us=round(max(num_bytes / BYTES_PER_US, flops / FLOPS_PER_US), 1),
            flops=flops,
        )
        print(line, flush=True)
        torch.cuda.empty_cache()


def main() -> None:
    """Measure every shape."""
    gpu = get_gpu()
    for shape in SHAPES:
        measure(shape, gpu)


if __name__ == "__main__":
    main()
