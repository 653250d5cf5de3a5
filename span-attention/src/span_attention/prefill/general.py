"""The attention of any architecture: variant, grid and call of general.cu."""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_kernel_launch import Call, FileCache, Gpu, Source, Variant, compile_variant, load

from span_attention.layout import ArrayStrides, SpanLayout
from span_attention.prefill.arguments import Arguments
from span_attention.prefill.kernels import PREFILL_GENERAL, GeneralArguments
from span_attention.prefill.options import PrefillOptions, element_for, stored_as
from span_attention.prefill.tuning import Tiles, launch, tiles

SOURCE = Source(
    "span_attention",
    "prefill/general.cu",
    headers=("types.cuh", "reduce.cuh", "mma.cuh", "copy.cuh", "codes.cuh"),
    own=("softmax.cuh", "tiles.cuh", "dequantize.cuh"),
    kernels=(PREFILL_GENERAL,),
)


@dataclass(frozen=True, slots=True)
class General:
    """general.cu, loaded: tiles of `lines` lines, blocks of `block` keys. No task is shared."""

    layout: SpanLayout
    heads: int
    lines: int
    block: int
    call: Call[GeneralArguments]
    most_sharers: int = 0
    workspace_bytes: int = 0

    def start(self, stream: int, given: Arguments) -> None:
        """Start the kernel."""
        layout = self.layout
        keys, values = given.spans.places
        key_scales, value_scales = given.spans.scale_places
        key_span, key_head, key_token = _strides(layout, layout.keys)
        key_scales_span, key_scales_head, key_scales_token = _strides(layout, layout.key_scales)
        value_span, value_head, value_token = _strides(layout, layout.values)
        value_scales_span, value_scales_head, value_scales_token = _strides(
            layout, layout.value_scales
        )
        arguments = GeneralArguments(
            out=given.out,
            query=given.query,
            query_stride=given.query_stride,
            query_head=layout.key_size,
            span_tables=given.span_tables,
            table_rows=given.table_rows,
            plan=given.plan,
            num_slices=given.slices,
            table_stride=given.table_stride,
            span_shift=layout.span_len.bit_length() - 1,
            heads=self.heads,
            pack=given.pack,
            kv_heads=layout.kv_heads,
            softmax_scale=given.softmax_scale,
            softcap=given.softcap,
            window=given.window,
            alibi_slopes=given.alibi_slopes,
            sinks=given.sinks,
            keys=keys,
            key_span=key_span,
            key_head=key_head,
            key_token=key_token,
            key_scales=key_scales,
            key_scales_span=key_scales_span,
            key_scales_head=key_scales_head,
            key_scales_token=key_scales_token,
            values=values,
            value_span=value_span,
            value_head=value_head,
            value_token=value_token,
            value_scales=value_scales,
            value_scales_span=value_scales_span,
            value_scales_head=value_scales_head,
            value_scales_token=value_scales_token,
            lse=given.lse,
            ahead=0,
            biases=0,
            reach=0,
        )
        self.call(stream, arguments)


def _strides(layout: SpanLayout, place: ArrayStrides | None) -> tuple[int, int, int]:
    """Return the bytes from span to span, head, token."""
    if place is None:
        return 0, 0, 0
    return layout.span_stride, place.head_stride, place.token_stride


def variant_for(
    options: PrefillOptions, layout: SpanLayout, shared_bytes: int
) -> tuple[Variant, Tiles]:
    """Return the variant for spans of this layout and so much shared memory, and its tiles.

    Raises DTypeError for formats that it does not read, ShapeError for sizes it does not take.
    """
    element = element_for(options, layout.format)
    in_keys = layout.values == layout.keys
    cut = tiles(
        layout.key_size,
        layout.value_size,
        in_keys=in_keys,
        bits=layout.format.bits,
        shared_bytes=shared_bytes,
    )
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "STORED": stored_as(element, layout.format),
        "KEY_SIZE": layout.key_size,
        "VALUE_SIZE": layout.value_size,
        "VALUE_TILE": cut.value_tile,
        "IN_KEYS": in_keys,
        "BLOCK": cut.block,
        "M_TILES": cut.m_tiles,
        "WARPS": cut.warps,
        "LSE": options.lse,
        "RAGGED": False,
        "WIDTH": layout.value_size,
        "BIASED": False,
    }
    return Variant.of("prefill_general", SOURCE, macros, element.architectures), cut


def prepare(
    options: PrefillOptions, layout: SpanLayout, heads: int, gpu: Gpu, cache: FileCache
) -> General:
    """Return the loaded kernel, compiled or cached."""
    variant, cut = variant_for(options, layout, gpu.shared_bytes)
    compiled = compile_variant(variant, gpu.arch, cache)
    grid = launch(
        cut,
        registers=compiled.report.registers,
        sm_count=gpu.sm_count,
        shared_bytes=gpu.shared_bytes,
    )
    call = Call(load(compiled, gpu, PREFILL_GENERAL), grid)
    return General(layout, heads, cut.lines, cut.block, call)
