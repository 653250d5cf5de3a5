"""Expansion of a quantised KV cache to floats, for kernels that read floats alone.

The spans of R sequences, at most `columns` each, become spans of floats in memory of their own,
which holds one layer as `SpanLayout.contiguous` has it: that of sequence r's tokens from
j * span_len on is span r * columns + j there. Numbers are those that `prefill` makes of codes: a
code times its scale, rounded once. Spans behind a sequence's last token are left as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Final, NamedTuple

from spaninfer_kernel_launch import (
    Call,
    DTypeError,
    FileCache,
    Gpu,
    Int32,
    Int64,
    Launch,
    Pointer,
    ShapeError,
    Signature,
    Source,
    Variant,
    compile_variant,
    load,
    pointer_of,
    stream_handle,
    user_cache,
)

from span_attention.layout import SpanLayout
from span_attention.prefill.options import PrefillOptions, element_for
from span_attention.published import LATENT, OWN, SIZES, layout_of
from span_attention.quantize import CODES
from span_attention.spans import Spans

_THREADS: Final = 256  # each expands 16 bytes: a head of a span of 32 tokens is 4 KB of fp8
_SCALE_BYTES: Final = 4


class ExpandArguments(NamedTuple):
    """Addresses, the arguments of expand_spans."""

    to: Pointer
    keys: Pointer
    values: Pointer
    key_scales: Pointer
    value_scales: Pointer
    span_tables: Pointer
    table_rows: Pointer
    seq_lens: Pointer


class ExpandSizes(NamedTuple):
    """Sizes and strides, the constants of expand_spans: strides count bytes of codes, and float32
    of scales.
    """

    table_stride: Int32
    columns: Int32
    span_len: Int32
    kv_heads: Int32
    span_stride: Int64
    key_head: Int64
    key_token: Int64
    value_head: Int64
    value_token: Int64
    scales_span: Int64
    key_scales_head: Int64
    key_scales_token: Int64
    value_scales_head: Int64
    value_scales_token: Int64


EXPAND_SPANS: Final = Signature("expand_spans", ExpandArguments, ExpandSizes)
SOURCE: Final = Source(
    "span_attention",
    "expand/kernel.cu",
    headers=("types.cuh", "overlap.cuh", "codes.cuh"),
    own=("dequantize.cuh",),
    kernels=(EXPAND_SPANS,),
)


@dataclass(frozen=True, slots=True)
class PreparedExpansion:
    """The expansion of as many sequences and spans: to spans of the layout `floats`."""

    floats: SpanLayout
    sequences: int
    columns: int
    call: Call[ExpandArguments] | None

    @property
    def num_bytes(self) -> int:
        """Bytes of the memory that spans are expanded to, at a multiple of 16 bytes."""
        return self.sequences * self.columns * self.floats.span_stride

    def launch(
        self,
        spans: Spans,
        span_tables: object,
        table_rows: object,
        seq_lens: object,
        *,
        out: object,
        stream: object = None,
    ) -> Spans:
        """Expand what span_tables[table_rows[R]] names up to seq_lens[R]; return `out` as spans."""
        arrays = out, *spans.places, *spans.scale_places, span_tables, table_rows, seq_lens
        arguments = ExpandArguments._make(map(pointer_of, arrays))
        if self.call is not None:
            self.call(stream_handle(stream, seq_lens), arguments)
        return Spans(out, self.floats)


def takes(layout: SpanLayout) -> bool:
    """Return True if spans of this layout hold codes, of keys and values apart."""
    return layout.format in CODES and layout.values != layout.keys


def variant_for(dtype: str, layout: SpanLayout) -> Variant:
    """Return the variant for codes of this layout and floats of `dtype`, float16 or bfloat16.

    Raises DTypeError for spans of floats, ShapeError for latents: kernels of their own read these.
    """
    if layout.format not in CODES:
        raise DTypeError(f"spans hold {layout.format.label}; only codes are expanded")
    if layout.values == layout.keys:
        raise ShapeError("values lie in the keys; only keys and values apart are expanded")
    element = element_for(PrefillOptions(dtype), layout.format)
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "CODE": CODES[layout.format],
        "KEY_SIZE": layout.key_size,
        "VALUE_SIZE": layout.value_size,
        "THREADS": _THREADS,
    }
    return Variant.of("expand_spans", SOURCE, macros, element.architectures)


def expanded_layout(dtype: str, layout: SpanLayout) -> SpanLayout:
    """Return the layout of the floats: of one layer."""
    return SpanLayout.contiguous(
        span_len=layout.span_len,
        kv_heads=layout.kv_heads,
        key_size=layout.key_size,
        value_size=layout.value_size,
        format=OWN[dtype],
        num_layers=1,
    )


def prepare(
    dtype: str,
    layout: SpanLayout,
    *,
    sequences: int,
    columns: int,
    table_stride: int,
    gpu: Gpu,
    cache: FileCache | None = None,
) -> PreparedExpansion:
    """Return the expansion of `sequences` with at most `columns` spans each, compiled or cached.

    `table_stride` counts numbers from one row of the tables to the next. Raises ShapeError or
    DTypeError for spans that are not expanded.
    """
    compiled = compile_variant(variant_for(dtype, layout), gpu.arch, cache or user_cache())
    count = sequences * columns
    grid = Launch((count, 2 * layout.kv_heads, 1), (_THREADS, 1, 1), overlaps=True)
    sizes = _sizes(layout, columns, table_stride)
    call = Call(load(compiled, gpu, EXPAND_SPANS), grid, sizes) if count else None
    return PreparedExpansion(expanded_layout(dtype, layout), sequences, columns, call)


def _sizes(layout: SpanLayout, columns: int, table_stride: int) -> ExpandSizes:
    keys, values = layout.key_scales, layout.value_scales
    assert keys is not None, "codes have scales"
    assert values is not None, "codes have scales"
    return ExpandSizes(
        table_stride=table_stride,
        columns=columns,
        span_len=layout.span_len,
        kv_heads=layout.kv_heads,
        span_stride=layout.span_stride,
        key_head=layout.keys.head_stride,
        key_token=layout.keys.token_stride,
        value_head=layout.values.head_stride,
        value_token=layout.values.token_stride,
        scales_span=layout.span_stride // _SCALE_BYTES,
        key_scales_head=keys.head_stride // _SCALE_BYTES,
        key_scales_token=keys.token_stride // _SCALE_BYTES,
        value_scales_head=values.head_stride // _SCALE_BYTES,
        value_scales_token=values.token_stride // _SCALE_BYTES,
    )


def _variants() -> tuple[Variant, ...]:
    sizes = [(key, value) for key, value in SIZES if key != LATENT]
    return tuple(
        variant_for(dtype, layout_of(key, value, format))
        for dtype, format, (key, value) in product(OWN, CODES, sizes)
        if all(size * format.bits % 128 == 0 for size in (key, value))
    )


VARIANTS: Final = _variants()
"""Every element type and code with the sizes of heads of published models."""
