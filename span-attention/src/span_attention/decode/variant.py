"""What a decode is asked for, and the variants of its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import DTypeError, Element, Source, Variant, element_of

from span_attention.decode.tuning import PLAN_THREADS, Tuning, places, tune
from span_attention.layout import Format, SpanLayout

_ATTEND: Final = Source(
    "span_attention",
    "decode/kernel.cu",
    headers=("types.cuh", "reduce.cuh", "overlap.cuh", "mma.cuh"),
    own=("softmax.cuh", "pairs.cuh", "decode_plan.cuh"),
    parts=(
        "decode/sizes.cuh",
        "decode/walk.cuh",
        "decode/loads.cuh",
        "decode/query.cuh",
        "decode/tiles.cuh",
        "decode/sums.cuh",
        "decode/merge.cuh",
    ),
)
_PLAN: Final = Source(
    "span_attention",
    "decode/plan.cu",
    headers=("reduce.cuh", "overlap.cuh"),
    own=("decode_plan.cuh",),
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
class Form:
    """What a decode is asked for: `dtype` is the element type of queries and results.

    float16 or bfloat16, and that of the spans where these hold floats.
    """

    dtype: object


def element_for(form: Form, layout: SpanLayout) -> Element:
    """Return the element type of queries and results. Raises DTypeError for others."""
    element = element_of(form.dtype)
    if layout.format not in _CODES or element.itemsize != 2:
        raise DTypeError(
            f"decode takes float16 and bfloat16 queries and spans of 16 bits and less, not "
            f"{element.name} over {layout.format.label}"
        )
    stored = {Format.FLOAT16: "half", Format.BFLOAT16: "bfloat16"}.get(layout.format, element.name)
    if stored != element.name:
        raise DTypeError(f"queries are {element.name}, but the spans hold {layout.format.label}")
    return element


def variant_for(form: Form, layout: SpanLayout, tuning: Tuning) -> Variant:
    """Return the variant that reads spans of this layout. Raises DTypeError for other types."""
    element = element_for(form, layout)
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
        **_strides(layout),
    }
    return Variant.of("decode_attend", _ATTEND, macros, element.architectures)


def _strides(layout: SpanLayout) -> dict[str, int]:
    """Return the macros of bytes from token to token."""
    names = ("KEY_STRIDE", "VALUE_STRIDE", "KEY_NUMBERS_STRIDE", "VALUE_NUMBERS_STRIDE")
    strides = (place.token_stride if place else 0 for place in places(layout))
    return dict(zip(names, strides, strict=True))


def _cover(
    dtype: object,
    format: Format,
    key_size: int,
    value_size: int,
    heads: int,
    *,
    requests: int = 64,
    mla: bool = False,
) -> Variant:
    layout = SpanLayout.contiguous(
        span_len=32,
        kv_heads=1,
        key_size=key_size,
        value_size=value_size,
        format=format,
        num_layers=1,
        values_in_keys=mla,
    )
    return variant_for(Form(dtype), layout, tune(layout, heads, requests))


_BFLOAT16: Final = ml_dtypes.bfloat16

VARIANTS: tuple[Variant, ...] = (
    PLAN,
    _cover(_BFLOAT16, Format.BFLOAT16, 128, 128, 7),
    _cover(_BFLOAT16, Format.BFLOAT16, 128, 128, 7, requests=1),
    _cover(np.float16, Format.FLOAT16, 128, 96, 2, requests=1),
    _cover(np.float16, Format.FLOAT16, 64, 64, 1),
    _cover(np.float16, Format.FLOAT16, 96, 96, 16),
    _cover(_BFLOAT16, Format.BFLOAT16, 256, 256, 8),
    _cover(_BFLOAT16, Format.BFLOAT16, 192, 128, 12),
    _cover(_BFLOAT16, Format.BFLOAT16, 576, 512, 16, mla=True),
    _cover(_BFLOAT16, Format.FP8, 128, 128, 4),
    _cover(np.float16, Format.FP8, 256, 256, 2),
    _cover(_BFLOAT16, Format.INT8, 128, 128, 8),
    _cover(np.float16, Format.INT8, 96, 96, 3),
    _cover(_BFLOAT16, Format.UINT4, 128, 128, 7),
    _cover(np.float16, Format.UINT4, 96, 64, 16),
)
"""A cover: every element type, format and class of head size occurs."""
