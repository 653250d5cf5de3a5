"""Expansion of a quantised KV cache to floats, for kernels that read floats alone.

The spans of R sequences become spans of floats in memory of their own, which holds one layer as
`SpanLayout.contiguous` has it: that of sequence r's tokens from j * span_len on is span
begins[r] + j there, behind all those of the sequences before it. Numbers are those that `prefill`
makes of codes: a code times its scale, rounded once.

A plan, made once per step for all layers, finds the spans on the GPU: runs that were captured into
a CUDA graph expand what each new plan names, up to its capacity.
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
    Launches,
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
_BLOCKS_PER_SM: Final = 8  # as many as have room, each with a span's keys or values of one head
_SCALE_BYTES: Final = 4
_PLAN_LAUNCH: Final = Launch((1, 1, 1), (1024, 1, 1))


class ExpandPlanArguments(NamedTuple):
    """Arguments of expand_plan."""

    plan: Pointer
    begins: Pointer
    span_tables: Pointer
    table_rows: Pointer
    seq_lens: Pointer
    sequences: Int32
    table_stride: Int32
    span_len: Int32
    capacity: Int32


class ExpandArguments(NamedTuple):
    """Addresses, the arguments of expand_spans."""

    to: Pointer
    keys: Pointer
    values: Pointer
    key_scales: Pointer
    value_scales: Pointer
    plan: Pointer


class ExpandSizes(NamedTuple):
    """Sizes and strides, the constants of expand_spans: strides count bytes of codes, and float32
    of scales.
    """

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


EXPAND_PLAN: Final = Signature("expand_plan", ExpandPlanArguments)
EXPAND_SPANS: Final = Signature("expand_spans", ExpandArguments, ExpandSizes)
SOURCE: Final = Source(
    "span_attention",
    "expand/kernel.cu",
    headers=("types.cuh", "overlap.cuh", "codes.cuh"),
    own=("dequantize.cuh",),
    kernels=(EXPAND_SPANS,),
)
PLAN: Final = Variant.of(
    "expand_plan",
    Source(
        "span_attention",
        "expand/plan.cu",
        headers=("reduce.cuh", "overlap.cuh"),
        own=("running_sum.cuh",),
        kernels=(EXPAND_PLAN,),
    ),
    {},
)


class Sequences(NamedTuple):
    """The R sequences of a step, whose tables lie `table_stride` numbers apart. All are int32."""

    span_tables: object  # [N M] the spans of each sequence in order
    table_rows: object  # [R] row of the tables
    seq_lens: object  # [R] tokens; 0: nothing is expanded
    num_sequences: int  # R
    table_stride: int


@dataclass(frozen=True, slots=True)
class PreparedExpansion:
    """The expansion of any spans: to spans of the layout `floats`."""

    floats: SpanLayout
    planning: Launches
    call: Call[ExpandArguments]

    def plan(
        self,
        sequences: Sequences,
        *,
        capacity: int,
        out: tuple[object, object],
        stream: object = None,
    ) -> None:
        """Write a plan to `out`: int32 plan[1 + capacity] and begins[R].

        Nothing is read on the host. Spans beyond the capacity are left out: that they are none is
        not checked; the caller must ensure it. Launches read the plan before they wait for the
        previous kernel: it must not change until they have finished.
        """
        addresses = map(pointer_of, (*out, *sequences[:3]))
        sizes = sequences.num_sequences, sequences.table_stride, self.floats.span_len, capacity
        handle = stream_handle(stream, sequences.seq_lens)
        self.planning.start(handle, (*addresses, *sizes))

    def launch(self, spans: Spans, plan: object, *, out: object, stream: object = None) -> Spans:
        """Expand the spans of a layer that a plan names; return `out` as spans.

        `out` begins at a multiple of 16 bytes, and has room for as many as the plan's capacity.
        """
        arrays = out, *spans.places, *spans.scale_places, plan
        arguments = ExpandArguments._make(map(pointer_of, arrays))
        self.call(stream_handle(stream, plan), arguments)
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
    dtype: str, layout: SpanLayout, *, gpu: Gpu, cache: FileCache | None = None
) -> PreparedExpansion:
    """Return the expansion of spans of this layout on `gpu`, compiled or cached.

    Raises ShapeError or DTypeError for spans that are not expanded.
    """
    kept = cache or user_cache()
    compiled = compile_variant(variant_for(dtype, layout), gpu.arch, kept)
    parts = 2 * layout.kv_heads
    blocks = -(-_BLOCKS_PER_SM * gpu.sm_count // parts)
    grid = Launch((blocks, parts, 1), (_THREADS, 1, 1), overlaps=True)
    call = Call(load(compiled, gpu, EXPAND_SPANS), grid, _sizes(layout))
    plan = Call(load(compile_variant(PLAN, gpu.arch, kept), gpu, EXPAND_PLAN), _PLAN_LAUNCH)
    planning = Launches([(plan, {})], ExpandPlanArguments._fields)
    return PreparedExpansion(expanded_layout(dtype, layout), planning, call)


def _sizes(layout: SpanLayout) -> ExpandSizes:
    keys, values = layout.key_scales, layout.value_scales
    assert keys is not None, "codes have scales"
    assert values is not None, "codes have scales"
    return ExpandSizes(
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
    return PLAN, *(
        variant_for(dtype, layout_of(key, value, format))
        for dtype, format, (key, value) in product(OWN, CODES, sizes)
        if all(size * format.bits % 128 == 0 for size in (key, value))
    )


VARIANTS: Final = _variants()
"""Every element type and code with the sizes of heads of published models."""
