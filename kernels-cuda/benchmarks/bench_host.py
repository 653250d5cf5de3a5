"""Host time of public calls: a table on standard error, a JSON record each on output.

Every operator of kernels-cuda and span-attention as users call it from Python, with torch tensors,
without `out` and on torch's current stream; beside it torch's operator for the same, timed in the
same run (FlashInfer publishes no times of the host). Sizes are small, and launches of a batch fewer
than those that a stream holds, so that the host never waits for the GPU. Kernels are compiled side
by side first.

Needs torch and a GPU: python kernels-cuda/benchmarks/bench_host.py [--calls 100] [--rounds 40]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.nn.functional as F  # noqa: N812
from span_attention import (
    BatchDecode,
    BatchMLA,
    BatchPrefill,
    BatchRagged,
    BatchSelected,
    Format,
    Readers,
    SpanLayout,
    Spans,
    append,
    merge,
    select_keys,
)
from spaninfer_kernel_launch import Timing, compile_all, get_gpu, record, recording_kernels
from spaninfer_kernels_cuda import (
    activation,
    delta_rule,
    embedding,
    gemm,
    grouped_gemm,
    norm,
    quantize,
    quantized_gemm,
    rope,
    sample_from_logits,
    topk,
)
from spaninfer_kernels_cuda.moe import RouteOptions, moe, route
from spaninfer_kernels_cuda.scaled_gemm import scaled_gemm

ROWS, HIDDEN, VOCAB, HEADS, KV_HEADS, SIZE = 8, 4096, 32_000, 32, 8, 128
AIM_US = 15.0

Call = Callable[[], object]
Name = tuple[str, str]  # whose, and of what


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
    yield from packed_cases()
    yield from latent_cases()
    yield from sparse_cases()
    yield from delta_rule_cases()


def row_cases() -> Iterator[Case]:
    """Yield operators on rows."""
    x, residual = normal(ROWS, HIDDEN), normal(ROWS, HIDDEN)
    weight, bias, gate_up = normal(HIDDEN), normal(HIDDEN), normal(ROWS, 2 * HIDDEN)
    square = normal(HIDDEN, HIDDEN)
    heads = normal(ROWS, HEADS, SIZE)
    cosine, sine = torch.rand(2, ROWS, SIZE // 2, device="cuda")
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
        lambda: norm.layer_norm(x, weight, bias, eps=1e-6),
        lambda: F.layer_norm(x, (HIDDEN,), weight, bias, 1e-6),
    )
    yield Case("activation.activate", lambda: activation.activate(x, "silu"), lambda: F.silu(x))
    yield Case("activation.gated", lambda: activation.gated(gate_up, "silu"))
    ids = torch.arange(ROWS, dtype=torch.int32, device="cuda")
    yield Case(
        "embedding.embed", lambda: embedding.embed(square, ids), lambda: F.embedding(ids, square)
    )
    yield Case("rope.rope", lambda: rope.rope(heads, cosine, sine))
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
    """Yield a layer of experts, which has three launches at least, and parts of it."""
    experts, channels, inner = 16, 1024, 512
    x, router_logits = normal(ROWS, channels), torch.randn(ROWS, experts, device="cuda")
    w13, w2 = normal(experts, 2 * inner, channels), normal(experts, channels, inner)
    options = RouteOptions(2, normalise=True)
    yield Case("moe", lambda: moe(x, router_logits, w13, w2, options))
    few, few_logits = x[:1], router_logits[:1]
    yield Case("moe, one token", lambda: moe(few, few_logits, w13, w2, options))
    yield Case("moe.route.route", lambda: route.route(router_logits, options))
    ends = torch.arange(experts, dtype=torch.int32, device="cuda").clamp(max=ROWS)
    yield Case("grouped_gemm", lambda: grouped_gemm.grouped_gemm(x, w13, ends))


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
    key, value = normal(2, ROWS, KV_HEADS, SIZE)
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
        "append.append", lambda: append.append(query, key, value, slots, spans=spans, rotary=rotary)
    )
    outputs, lse = normal(2, ROWS, HEADS, SIZE), torch.rand(2, ROWS, HEADS, device="cuda")
    yield Case("merge.merge", lambda: merge.merge(outputs, lse))


def packed_cases() -> Iterator[Case]:
    """Yield attention within packed sequences, planned once per batch."""
    bounds = torch.arange(0, 32 * ROWS + 1, 32, dtype=torch.int32, device="cuda")
    query, key, value = normal(3, 32 * ROWS, HEADS, SIZE)
    ragged = BatchRagged(num_heads=HEADS, head_size=SIZE, dtype=query.dtype)

    def plan() -> None:
        ragged.plan(bounds, num_rows=32 * ROWS)

    plan()
    yield Case("BatchRagged.plan", plan)
    yield Case("BatchRagged.run", lambda: ragged.run(query, key, value, softmax_scale=SIZE**-0.5))


def latent_cases() -> Iterator[Case]:
    """Yield attention over latents: a plan per step, two launches per layer where keys are few."""
    spans, lens, tables = latents(576, 512)
    numbers = torch.arange(ROWS + 1, dtype=torch.int32, device="cuda")
    query = normal(ROWS, 16, 576)
    latent = BatchMLA(spans.layout, num_heads=16, dtype=query.dtype)

    def plan() -> None:
        latent.plan(numbers, lens, tables, table_rows=numbers[:ROWS], num_tokens=ROWS)

    plan()
    yield Case("BatchMLA.plan", plan)
    yield Case("BatchMLA.run", lambda: latent.run(query, spans, softmax_scale=0.1))


def sparse_cases() -> Iterator[Case]:
    """Yield the selection of keys by an indexer, and attention to those."""
    (keys, lens, tables), (spans, *_) = latents(128, 128), latents(576, 512)
    rows = torch.arange(ROWS, dtype=torch.int32, device="cuda")
    readers, weights = Readers(tables, rows, lens), torch.rand(ROWS, 16, device="cuda")
    asked, query = normal(ROWS, 16, 128), normal(ROWS, 16, 576)
    sparse = BatchSelected(spans.layout, num_heads=16, dtype=query.dtype)
    sparse.plan(readers, top_k=16)
    selected = select_keys(asked, weights, keys, readers, top_k=16)
    yield Case("select_keys", lambda: select_keys(asked, weights, keys, readers, top_k=16))
    yield Case("BatchSelected.plan", lambda: sparse.plan(readers, top_k=16))
    yield Case("BatchSelected.run", lambda: sparse.run(query, spans, selected, softmax_scale=0.1))


def latents(key_size: int, value_size: int) -> tuple[Spans, torch.Tensor, torch.Tensor]:
    """Return spans of one head whose values lie in the keys, lengths and tables of sequences."""
    layout = SpanLayout.contiguous(
        span_len=32,
        kv_heads=1,
        key_size=key_size,
        value_size=value_size,
        format=Format.BFLOAT16,
        num_layers=1,
        values_in_keys=True,
    )
    cache = torch.zeros(ROWS * layout.span_bytes, dtype=torch.uint8, device="cuda")
    tables = torch.arange(ROWS, dtype=torch.int32, device="cuda")[:, None]
    return Spans(cache, layout), torch.full_like(tables[:, 0], 32), tables


def delta_rule_cases() -> Iterator[Case]:
    """Yield the operators of a layer with a recurrent state."""
    heads, channels = 4, 4 * 3 * SIZE
    rows = torch.arange(ROWS + 1, dtype=torch.int32, device="cuda")
    lens = torch.full((ROWS,), 9, dtype=torch.int32, device="cuda")
    slices = delta_rule.Slices(rows[:ROWS], lens, rows, rows[:ROWS, None], 32, ROWS)
    x, weight, inputs = (
        normal(ROWS, channels),
        normal(channels, 4),
        normal(ROWS, 3, channels).float(),
    )
    gates, decays = tuple(normal(2, ROWS, heads)), tuple(torch.rand(2, heads, device="cuda"))
    states = torch.zeros(ROWS, heads, SIZE, SIZE, device="cuda")
    mixed, gate = normal(2, ROWS, heads, SIZE)
    scale = normal(SIZE)
    yield Case("delta_rule.convolve", lambda: delta_rule.convolve(x, weight, inputs, slices))
    yield Case(
        "delta_rule.delta_rule",
        lambda: delta_rule.delta_rule(x, gates, decays, states, slices),
    )
    yield Case(
        "delta_rule.gated_rms_norm",
        lambda: delta_rule.gated_rms_norm(mixed, gate, scale, eps=1e-6),
    )


def normal(*shape: int) -> torch.Tensor:
    """Return random bfloat16."""
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def seconds_of(call: Call, calls: int) -> float:
    """Return the time that the host takes for each of so many calls; the GPU is idle before."""
    torch.cuda.synchronize()
    begin = perf_counter()
    for _ in range(calls):
        call()
    return (perf_counter() - begin) / calls


def measure(calls_by_name: Mapping[Name, Call], calls: int, rounds: int) -> dict[Name, Timing]:
    """Return the times of all, in rounds, the first of which does not count.

    A host that others share is fast at times and slow at others, for seconds: all calls meet both.
    """
    times: dict[Name, list[float]] = {name: [] for name in calls_by_name}
    for _ in range(1 + rounds):
        for name, call in calls_by_name.items():
            times[name].append(1e6 * seconds_of(call, calls))
    ordered = {name: sorted(each[1:]) for name, each in times.items()}
    return {name: Timing(each[rounds // 2], each[0], each[-1]) for name, each in ordered.items()}


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        all_cases = tuple(cases())
        with recording_kernels() as requests:
            for case in all_cases:
                case.ours()
        compile_all(requests)
        named = {("host", case.operator): case.ours for case in all_cases}
        named |= {("torch", case.operator): case.torchs for case in all_cases if case.torchs}
        found = measure(named, given.calls, given.rounds)
    for (kernel, call), timing in found.items():
        print(record(get_gpu(), timing, bytes_moved=0, kernel=kernel, call=call))
    print(
        f"{'call':28} {'us':>6} {'least':>6} {'torch':>6} {'least':>6}   (aim: {AIM_US:g})",
        file=sys.stderr,
    )
    for case in all_cases:
        shown = f"{case.operator:28}"
        for kernel in ("host", "torch"):
            timed = found.get((kernel, case.operator))
            shown += f" {timed.us:6.1f} {timed.fastest_us:6.1f}" if timed else ""
        print(shown, file=sys.stderr)


if __name__ == "__main__":
    main()
