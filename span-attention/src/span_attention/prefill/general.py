"""The attention of any architecture: variant, grid and call of general.cu."""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    NamedCalls,
    Source,
    Variant,
    compile_variant,
    load,
)

from span_attention.layout import ArrayStrides, SpanLayout
from span_attention.prefill.division import Division
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

    def attend(self, run: Division, query_stride: int) -> tuple[NamedCalls, dict[str, int]]:  # noqa: ARG002
        """Return the call of a run over queries with this stride, and constants."""
        layout = self.layout
        constants = {"query_stride": query_stride, "query_head": layout.key_size}
        places = {
            "key": layout.keys,
            "key_scales": layout.key_scales,
            "value": layout.values,
            "value_scales": layout.value_scales,
        }
        for name, place in places.items():
            strides = zip(("span", "head", "token"), _strides(layout, place), strict=True)
            constants |= {f"{name}_{to}": stride for to, stride in strides}
        return NamedCalls.of(self.call), constants


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
