"""Times of an append, by rows and format: one JSON record per line on standard output.

Needs torch and a GPU: python span-attention/benchmarks/bench_append.py
"""

from __future__ import annotations

import ml_dtypes
import torch
from span_attention import Format, SpanLayout, Spans, append
from spaninfer_kernel_launch import Gpu, Timing, get_gpu, record, time_launches

HEADS, KV_HEADS, SIZE, SPAN_LEN = 28, 4, 128, 32  # Qwen2.5-7B
ROWS = (1, 16, 64, 256, 2048, 8192)
FORMATS = (Format.BFLOAT16, Format.FP8, Format.INT8, Format.UINT4)
SETS = 20  # of arguments in turn: none is in the L2 cache again at 8192 rows


def layout_of(format: Format) -> SpanLayout:
    """Return spans of one layer."""
    return SpanLayout.contiguous(
        span_len=SPAN_LEN,
        kv_heads=KV_HEADS,
        key_size=SIZE,
        value_size=SIZE,
        format=format,
        num_layers=1,
    )


def measure(gpu: Gpu, format: Format, rows: int, *, head_norm: bool = False) -> Timing:
    """Time the append of rows of one projection to random places of the spans."""
    layout, width = layout_of(format), (HEADS + 2 * KV_HEADS) * SIZE
    sets = min(SETS, max(2, 2**28 // (rows * width * 2)))
    num_spans = rows // SPAN_LEN + 64
    qkv = torch.randn(sets, rows, width, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(rows, HEADS, SIZE, device="cuda", dtype=torch.bfloat16)
    cache = torch.zeros(num_spans * layout.span_bytes, device="cuda", dtype=torch.uint8)
    slot = torch.randperm(num_spans * SPAN_LEN, device="cuda")[:rows].int()
    angles = torch.rand(2, rows, SIZE // 2, device="cuda")
    weights = torch.randn(2, SIZE, device="cuda", dtype=torch.bfloat16)
    options = append.AppendOptions(head_norm=head_norm, dtype=ml_dtypes.bfloat16)
    step = append.prepare(
        options, layout, rows=rows, heads=HEADS, gpu=gpu, row_strides=(width, width, width)
    )
    spans, rotary = Spans(cache, layout), append.Rotary(*angles, len=SIZE)
    norm = append.HeadNorm(*weights, eps=1e-6) if head_norm else None
    begins = (0, HEADS * SIZE * 2, (HEADS + KV_HEADS) * SIZE * 2)

    def launch(stream: int, number: int) -> None:
        base = qkv[number % sets].data_ptr()
        step.launch(
            *(base + begin for begin in begins),
            slot,
            spans=spans,
            rotary=rotary,
            head_norm=norm,
            out=out,
            stream=stream,
        )

    torch.cuda.synchronize()
    return time_launches(launch, gpu)


def bytes_moved(format: Format, rows: int) -> int:
    """Return what must be read and written at least."""
    qkv = (HEADS + 2 * KV_HEADS) * SIZE * 2
    kept = layout_of(format).layer_bytes // SPAN_LEN
    return rows * (qkv + HEADS * SIZE * 2 + kept + 2 * SIZE // 2 * 4)


def main() -> None:
    """Measure every format and number of rows, then head norm."""
    gpu = get_gpu()
    for format in FORMATS:
        for head_norm in (False, True):
            for rows in ROWS:
                timing = measure(gpu, format, rows, head_norm=head_norm)
                sizes = {"format": format.label, "rows": rows, "head_norm": head_norm}
                line = record(
                    gpu, timing, bytes_moved=bytes_moved(format, rows), kernel="append", **sizes
                )
                print(line, flush=True)


if __name__ == "__main__":
    main()
