"""Host time of public calls: a table on standard error, a JSON record each on output.

Every operator of kernels-cuda and span-attention as users call it from Python, with torch tensors,
without `out` and on torch's current stream; beside it torch's operator for the same, timed in the
same run (FlashInfer publishes no times of the host). Sizes are such that the GPU is done before the
host is.

Needs torch and a GPU: python kernels-cuda/benchmarks/bench_host.py [--calls 500] [--repeats 15]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.nn.functional as F  # noqa: N812
from span_attention import BatchDecode, BatchPrefill, Format, SpanLayout, Spans, append, merge
from spaninfer_kernel_launch import Timing, get_gpu, record
from spaninfer_kernels_cuda import (
    activation,
    gemm,
    norm,
    quantize,
    quantized_gemm,
    rope,
    sample_from_logits,
    topk,
)
from spaninfer_kernels_cuda.moe import RouteOptions, moe
from spaninfer_kernels_cuda.scaled_gemm import scaled_gemm

ROWS, HIDDEN, VOCAB, HEADS, KV_HEADS, SIZE = 8, 4096, 32_000, 32, 8, 128
AIM_US = 15.0

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """A public call, and torch's for the same, where there is one."""

    operator: str
    ours: Call
    torchs: Call | None = None


def cases() -> Iterator[Case]:
    """Yield every operator."""
    yield from row_cases()
    yield from code_cases()
    yield from expert_cases()
    yield from logit_cases()
    yield from attention_cases()


def row_cases() -> Iterator[Case]:
    """Yield operators on rows."""
    x, residual = normal(ROWS, HIDDEN), normal(ROWS, HIDDEN)
    weight, gate_up = normal(HIDDEN), normal(ROWS, 2 * HIDDEN)
    square = normal(HIDDEN, HIDDEN)
    heads, angles = normal(ROWS, HEADS, SIZE), torch.rand(ROWS, SIZE // 2, device="cuda")
    yield Case(
        "norm.rms_norm",
        lambda: norm.rms_norm(x, weight, eps=1e-6),
        lambda: F.rms_norm(x, (HIDDEN,), weight, 1e-6),
    )
    yield Case(
        "norm.rms_norm, residual", lambda: norm.rms_norm(x, weight, eps=1e-6, residual=residual)
    )
    yield Case(
        "norm.rms_norm_quantized", lambda: norm.rms_norm_quantized(x, weight, "int8", eps=1e-6)
    )
    yield Case(
        "norm.layer_norm",
        lambda: norm.layer_norm(x, weight, weight, eps=1e-6),
        lambda: F.layer_norm(x, (HIDDEN,), weight, weight, 1e-6),
    )
    yield Case("activation.activate", lambda: activation.activate(x, "silu"), lambda: F.silu(x))
    yield Case("activation.gated", lambda: activation.gated(gate_up, "silu"))
    yield Case("rope.rope", lambda: rope.rope(heads, angles, angles))
    yield Case("quantize.quantize", lambda: quantize.quantize(x, "int8"))
    yield Case("gemm.gemm", lambda: gemm.gemm(x, square), lambda: F.linear(x, square))


def code_cases() -> Iterator[Case]:
    """Yield GEMMs of codes."""
    x = normal(ROWS, HIDDEN)
    codes = torch.zeros(ROWS, HIDDEN, dtype=torch.int8, device="cuda")
    square = torch.zeros(HIDDEN, HIDDEN, dtype=torch.int8, device="cuda")
    scales, row_scales = torch.ones(HIDDEN, device="cuda"), torch.ones(ROWS, device="cuda")
    yield Case(
        "scaled_gemm, int8",
        lambda: scaled_gemm(codes, square, x_scales=row_scales, weight_scales=scales),
    )
    form = quantized_gemm.QuantizedFormat(4, 128)
    blocks, chunks, size = form.records(HIDDEN, HIDDEN)
    weight = quantized_gemm.PackedWeight(
        torch.zeros(blocks, chunks, size, dtype=torch.uint8, device="cuda"),
        torch.ones(64 * blocks, device="cuda"),
        *(form, HIDDEN, HIDDEN),
    )
    yield Case("quantized_gemm, 4 bits", lambda: quantized_gemm.multiply(x, weight))


def expert_cases() -> Iterator[Case]:
    """Yield a layer of experts: three launches at least."""
    experts, channels, inner = 16, 1024, 512
    x, router_logits = normal(ROWS, channels), torch.randn(ROWS, experts, device="cuda")
    w13, w2 = normal(experts, 2 * inner, channels), normal(experts, channels, inner)
    options = RouteOptions(2, normalise=True)
    yield Case("moe", lambda: moe(x, router_logits, w13, w2, options))


def logit_cases() -> Iterator[Case]:
    """Yield what selects from logits."""
    logits = torch.randn(ROWS, VOCAB, device="cuda")
    heat = torch.full((ROWS,), 0.8, device="cuda")
    yield Case("topk.topk", lambda: topk.topk(logits, 50), lambda: torch.topk(logits, 50))
    yield Case(
        "sample_from_logits, numbers",
        lambda: sample_from_logits(logits, 0.8, 50, 0.9, seed=7),
        lambda: torch.multinomial(torch.softmax(logits / 0.8, -1), 1),
    )
    yield Case("sample_from_logits, arrays", lambda: sample_from_logits(logits, heat, 50, 0.9))


def attention_cases() -> Iterator[Case]:
    """Yield attention over spans: plans once per step, runs once per layer."""
    layout = SpanLayout.contiguous(
        span_len=32,
        kv_heads=KV_HEADS,
        key_size=SIZE,
        value_size=SIZE,
        format=Format.BFLOAT16,
        num_layers=1,
    )
    cache = torch.zeros(ROWS * layout.span_bytes, dtype=torch.uint8, device="cuda")
    spans = Spans(cache, layout)
    lens = torch.full((ROWS,), 32, dtype=torch.int32, device="cuda")
    tables = torch.arange(ROWS, dtype=torch.int32, device="cuda")[:, None]
    numbers = torch.arange(ROWS + 1, dtype=torch.int32, device="cuda")
    rows = numbers[:ROWS]
    query = normal(ROWS, HEADS, SIZE)
    key = normal(ROWS, KV_HEADS, SIZE)
    cosine, sine = torch.rand(2, ROWS, SIZE // 2, device="cuda")
    rotary = append.Rotary(cosine, sine, len=SIZE)
    decode = BatchDecode(layout, num_heads=HEADS, dtype=query.dtype)
    prefill = BatchPrefill(layout, num_heads=HEADS, dtype=query.dtype)

    def plan_prefill() -> None:
        prefill.plan(numbers, lens, tables, table_rows=rows, num_tokens=ROWS)

    decode.plan(lens, tables)
    plan_prefill()
    scale = SIZE**-0.5
    yield Case("BatchDecode.plan", lambda: decode.plan(lens, tables))
    yield Case("BatchDecode.run", lambda: decode.run(query, spans, softmax_scale=scale))
    yield Case("BatchPrefill.plan", plan_prefill)
    yield Case("BatchPrefill.run", lambda: prefill.run(query, spans, softmax_scale=scale))
    slots = rows * 32
    yield Case(
        "append.append", lambda: append.append(query, key, key, slots, spans=spans, rotary=rotary)
    )
    outputs, lse = normal(2, ROWS, HEADS, SIZE), torch.rand(2, ROWS, HEADS, device="cuda")
    yield Case("merge.merge", lambda: merge.merge(outputs, lse))


def normal(*shape: int) -> torch.Tensor:
    """Return random bfloat16."""
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def measure(call: Call, calls: int, repeats: int) -> Timing:
    """Return microseconds of the host per call, among batches that the GPU's queue can hold."""
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(calls):
            call()
        times.append((perf_counter() - start) * 1e6 / calls)
    times = sorted(times[1:])  # the first one compiles
    return Timing(times[len(times) // 2], times[0], times[-1])


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    print(f"{'call':28} {'us':>6} {'torch':>6}   (aim: {AIM_US:g})", file=sys.stderr)
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        for case in cases():
            ours = measure(case.ours, given.calls, given.repeats)
            print(record(get_gpu(), ours, bytes_moved=0, kernel="host", call=case.operator))
            shown = ""
            if case.torchs is not None:
                theirs = measure(case.torchs, given.calls, given.repeats)
                print(record(get_gpu(), theirs, bytes_moved=0, kernel="torch", call=case.operator))
                shown = f"{theirs.us:6.1f}"
            print(f"{case.operator:28} {ours.us:6.1f} {shown:>6}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
