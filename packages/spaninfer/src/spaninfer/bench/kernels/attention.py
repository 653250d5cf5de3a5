"""Cases of attention over spans: decode, prefill, and the append that writes keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from span_attention import BatchDecode, BatchPrefill, Format, SpanLayout, Spans, append
from spaninfer_kernel_launch import Gpu
from torch import Tensor

from spaninfer.bench.kernels.case import Case, Launch

SPAN_LEN = 32  # what the engine has
HEAD_SIZE = 128

_ITEM_BYTES = 2
_FILLED_AT_ONCE = 1 << 15  # rows


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads, and the key and value heads that they share."""

    query: int
    kv: int

    def __str__(self) -> str:
        """Return "28/4"."""
        return f"{self.query}/{self.kv}"


_DECODES = (
    ((8192,), Heads(28, 4)),
    ((131_072,), Heads(32, 8)),
    ((4096,) * 16, Heads(32, 8)),
    ((4096,) * 64, Heads(32, 8)),
    ((4096,) * 64, Heads(28, 4)),
    ((2048,) * 256, Heads(32, 8)),
    ((2048,) * 64, Heads(32, 32)),
    ((65_536, *(1024,) * 63), Heads(32, 8)),
)
_LARGE = _DECODES[3:7]
_PREFILLS = (
    ((4096,) * 4, 0, Heads(32, 8)),
    ((16_384,), 0, Heads(32, 8)),
    ((1024,) * 16, 0, Heads(28, 4)),
    ((512,), 0, Heads(28, 4)),
    ((4000,), 0, Heads(28, 4)),
    ((8192,), 0, Heads(28, 4)),
    ((400,), 3600, Heads(28, 4)),
)


def decode_cases() -> Iterator[Case]:
    """A step of one query per request; the bytes are those of keys and values alone."""
    codes = (Format.FP8, Format.INT8, Format.UINT4)
    shapes = [(Format.BFLOAT16, *shape) for shape in _DECODES]
    shapes += [(format, *shape) for format in codes for shape in _LARGE]
    for format, lengths, heads in shapes:
        yield Case(
            "decode",
            {"lengths": _shown(lengths), "heads": str(heads), "kv": format.label},
            sum(lengths) * _layout(heads, format, 1).layer_bytes // SPAN_LEN,
            partial(_decode, lengths, heads, format),
        )


def prefill_cases() -> Iterator[Case]:
    """Slices of prompts, causal, after that many tokens that are in the spans already."""
    for rows, before, heads in _PREFILLS:
        pairs = sum(n * before + n * (n + 1) // 2 for n in rows)
        tokens = heads.query * sum(rows) * 2 + heads.kv * (sum(rows) + len(rows) * before) * 2
        yield Case(
            "prefill",
            {"rows": _shown(rows), "before": before, "heads": str(heads), "kv": "bfloat16"},
            tokens * HEAD_SIZE * _ITEM_BYTES,
            partial(_prefill, rows, before, heads),
            flops=4 * heads.query * HEAD_SIZE * pairs,
        )


def append_cases() -> Iterator[Case]:
    """Rotary embedding of queries and keys, and the write of keys and values."""
    heads = Heads(28, 4)
    for rows in (1, 64, 256, 8192):
        for format in (Format.BFLOAT16, Format.FP8, Format.INT8, Format.UINT4):
            travelling = 2 * heads.query + 2 * heads.kv  # queries both ways, the others in
            written = _layout(heads, format, 1).layer_bytes // SPAN_LEN
            yield Case(
                "append",
                {"rows": rows, "heads": str(heads), "kv": format.label},
                rows * (travelling * HEAD_SIZE * _ITEM_BYTES + written),
                partial(_append, rows, heads, format),
            )


def _decode(lengths: Sequence[int], heads: Heads, format: Format, gpu: Gpu, sets: int) -> Launch:  # noqa: ARG001
    layout = _layout(heads, format, sets)
    cache, tables = _filled(lengths, layout)
    query = _random(len(lengths), heads.query, HEAD_SIZE)
    out = torch.empty_like(query)
    attention = BatchDecode(layout, num_heads=heads.query, dtype=query.dtype)
    attention.plan(torch.tensor(lengths, dtype=torch.int32, device="cuda"), tables)
    return _reads(attention, query, out, lambda number: Spans(cache, layout, number % sets))


def _prefill(rows: Sequence[int], before: int, heads: Heads, gpu: Gpu, sets: int) -> Launch:  # noqa: ARG001
    layout = _layout(heads, Format.BFLOAT16, sets)
    lengths = [before + n for n in rows]
    cache, tables = _filled(lengths, layout)
    query = _random(sum(rows), heads.query, HEAD_SIZE)
    out = torch.empty_like(query)
    attention = BatchPrefill(layout, num_heads=heads.query, dtype=query.dtype, splits=True)
    attention.plan(
        torch.tensor([0, *rows], device="cuda").cumsum(0).int(),
        torch.tensor(lengths, dtype=torch.int32, device="cuda"),
        tables,
        table_rows=torch.arange(len(rows), dtype=torch.int32, device="cuda"),
        num_tokens=sum(rows),
    )
    return _reads(attention, query, out, lambda number: Spans(cache, layout, number % sets))


def _reads(
    attention: BatchDecode | BatchPrefill, query: Tensor, out: Tensor, spans: Callable[[int], Spans]
) -> Launch:
    scale = HEAD_SIZE**-0.5
    return lambda stream, number: attention.run(
        query, spans(number), softmax_scale=scale, out=out, stream=stream
    )


def _append(rows: int, heads: Heads, format: Format, gpu: Gpu, sets: int) -> Launch:  # noqa: ARG001
    layout = _layout(heads, format, sets)
    cache = _bytes(-(-rows // SPAN_LEN) * layout.span_stride)
    query, out = (_random(sets, rows, heads.query, HEAD_SIZE) for _ in range(2))
    key, value = (_random(sets, rows, heads.kv, HEAD_SIZE) for _ in range(2))
    angles = torch.rand(rows, HEAD_SIZE // 2, device="cuda")
    rotary = append.Rotary(angles.cos(), angles.sin(), HEAD_SIZE)
    slot = torch.randperm(rows, device="cuda").int()

    def launch(stream: int, number: int) -> None:
        at = number % sets
        append.append(
            query[at],
            key[at],
            value[at],
            slot,
            spans=Spans(cache, layout, at),
            rotary=rotary,
            out=out[at],
            stream=stream,
        )

    return launch


def _layout(heads: Heads, format: Format, num_layers: int) -> SpanLayout:
    return SpanLayout.contiguous(
        span_len=SPAN_LEN,
        kv_heads=heads.kv,
        key_size=HEAD_SIZE,
        value_size=HEAD_SIZE,
        format=format,
        num_layers=num_layers,
    )


def _filled(lengths: Sequence[int], layout: SpanLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a cache of random keys and values in all layers, and tables that scatter its spans."""
    needed = [-(-length // SPAN_LEN) for length in lengths]
    order = torch.randperm(sum(needed), device="cuda").int()
    tables = torch.zeros(len(lengths), max(needed), dtype=torch.int32, device="cuda")
    for row, spans in enumerate(torch.split(order, needed)):
        tables[row, : len(spans)] = spans
    cache = _bytes(sum(needed) * layout.span_stride)
    slots = torch.arange(sum(needed) * SPAN_LEN, dtype=torch.int32, device="cuda")
    for layer in range(layout.num_layers):
        for slot in torch.split(slots, _FILLED_AT_ONCE):
            key, value = (_random(len(slot), layout.kv_heads, HEAD_SIZE) for _ in range(2))
            append.append(key, key, value, slot, spans=Spans(cache, layout, layer))
    return cache, tables


def _bytes(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device="cuda")


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def _shown(lengths: Sequence[int]) -> str:
    """Return "64 x 4096", or "65536 + 63 x 1024"."""
    parts = []
    for length in dict.fromkeys(lengths):
        count = lengths.count(length)
        parts.append(f"{count} x {length}" if count > 1 else str(length))
    return " + ".join(parts)
