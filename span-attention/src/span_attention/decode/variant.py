"""Variants of the decode kernels, and the request for one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from spaninfer_kernel_launch import DTypeError, Element, Source, Variant, element_of

from span_attention.decode.kernels import DECODE_ATTEND, DECODE_PLAN
from span_attention.decode.tuning import PLAN_THREADS, Tuning, places, tune
from span_attention.layout import Format, SpanLayout
from span_attention.published import OWN, SIZES, layout_of

_ATTEND: Final = Source(
    "span_attention",
    "decode/kernel.cu",
    headers=("types.cuh", "reduce.cuh", "overlap.cuh", "mma.cuh"),
    own=("softmax.cuh", "pairs.cuh", "decode_plan.cuh"),
    parts=(
        "decode/sizes.cuh",
        "decode/tile_iterator.cuh",
        "decode/loads.cuh",
        "decode/query.cuh",
        "decode/tiles.cuh",
        "decode/reduce.cuh",
        "decode/merge.cuh",
        "decode/long_items.cuh",
    ),
    kernels=(DECODE_ATTEND,),
)
_PLAN: Final = Source(
    "span_attention",
    "decode/plan.cu",
    headers=("reduce.cuh", "overlap.cuh"),
    own=("decode_plan.cuh",),
    kernels=(DECODE_PLAN,),
)
PLAN: Final = Variant.of("decode_plan", _PLAN, {"THREADS": PLAN_THREADS})

_CODES: Final = {
    Format.FLOAT16: "Plain<half>",
    Format.BFLOAT16: "Plain<bfloat16>",
    Format.FP8: "Fp8Codes",
    Format.INT8: "Int8Codes",
    Format.UINT4: "Uint4Codes",
}


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """A request for a variant: `dtype` is the element type of queries and results.

    float16 or bfloat16, and that of the spans where these hold floats. With `lse`, log-sum-exps of
    scores are a second result.
    """

    dtype: object
    lse: bool = False


def element_for(options: DecodeOptions, layout: SpanLayout) -> Element:
    """Return the element type of queries and results. Raises DTypeError for others."""
    element = element_of(options.dtype)
    if layout.format not in _CODES or element.itemsize != 2:
        raise DTypeError(
            f"decode takes float16 and bfloat16 queries and spans of 16 bits and less, not "
            f"{element.name} over {layout.format.label}"
        )
    stored = {Format.FLOAT16: "half", Format.BFLOAT16: "bfloat16"}.get(layout.format, element.name)
    if stored != element.name:
        raise DTypeError(f"queries are {element.name}, but the spans hold {layout.format.label}")
    return element


def variant_for(options: DecodeOptions, layout: SpanLayout, tuning: Tuning) -> Variant:
    """Return the variant that reads spans of this layout. Raises DTypeError for other types."""
    element = element_for(options, layout)
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "CODES": _CODES[layout.format],
        "KEY_SIZE": layout.key_size,
        "VALUE_SIZE": layout.value_size,
        "VALUE_TILE": tuning.value_tile,
        "HEAD_TILES": tuning.head_tiles,
        "TILES": tuning.tiles,
        "WARPS": tuning.warps,
        "KEY_PARTS": tuning.key_parts,
        "VALUE_PARTS": tuning.value_parts,
        "BLOCKS_PER_SM": tuning.blocks_per_sm,
        "LSE": options.lse,
        **_strides(layout),
    }
    return Variant.of("decode_attend", _ATTEND, macros, element.architectures)


def _strides(layout: SpanLayout) -> dict[str, int]:
    """Return the macros of bytes from token to token."""
    names = ("KEY_STRIDE", "VALUE_STRIDE", "KEY_SCALES_STRIDE", "VALUE_SCALES_STRIDE")
    strides = (place.token_stride if place else 0 for place in places(layout))
    return dict(zip(names, strides, strict=True))


_HEADS: Final = (8, 16)  # per key head: they decide, with the requests, how a decode is tuned
_REQUESTS: Final = (1, 64)


def _variants() -> Iterator[Variant]:
    yield PLAN
    for (key_size, value_size), (dtype, own) in product(SIZES, OWN.items()):
        for format in (own, Format.FP8, Format.INT8, Format.UINT4):
            layout = layout_of(key_size, value_size, format)
            for heads, requests, lse in product(_HEADS, _REQUESTS, (False, True)):
                yield variant_for(DecodeOptions(dtype, lse), layout, tune(layout, heads, requests))


VARIANTS: Final = tuple(dict.fromkeys(_variants()))
"""Every element type, format and tuning with the sizes of heads of published models, lse or not."""
