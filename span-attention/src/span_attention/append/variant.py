"""Variants of append: head norm, rotary embedding, quantisation."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Final

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    DTypeError,
    Element,
    ShapeError,
    Source,
    Variant,
    divide_head,
    element_of,
)

from span_attention.append.signature import APPEND_ROWS
from span_attention.append.tuning import THREADS
from span_attention.layout import Format, SpanLayout
from span_attention.published import LATENT, layout_of
from span_attention.quantize import CODES

_HEADERS = ("types.cuh", "math.cuh", "reduce.cuh", "overlap.cuh", "head.cuh")
_FLOATS: Final = {
    Format.FLOAT32: np.float32,
    Format.FLOAT16: np.float16,
    Format.BFLOAT16: ml_dtypes.bfloat16,
}


@dataclass(frozen=True, slots=True)
class AppendOptions:
    """A request for a variant: a norm over each head, and the pairs that rope rotates.

    `rotary_len` is the number of elements that rope rotates, the whole head unless given. `dtype`
    is the element type of queries, keys and values; that of the spans, unless those hold codes.
    """

    head_norm: bool = False
    interleaved: bool = False
    rotary_len: int | None = None
    dtype: object = None


def element_for(options: AppendOptions, layout: SpanLayout) -> Element:
    """Return the element type of queries, keys and values. Raises DTypeError for others."""
    own = _FLOATS.get(layout.format)
    if own is None and options.dtype is None:
        raise DTypeError(
            f"spans of {layout.format.label} take keys and values of several types; "
            "AppendOptions(dtype=...) must say which"
        )
    element = element_of(own if options.dtype is None else options.dtype)
    if own is not None and element != element_of(own):
        raise DTypeError(f"keys and values are {element.name}, but the spans hold {np.dtype(own)}")
    return element


def rotary_len(options: AppendOptions, layout: SpanLayout) -> int:
    """Return the number of elements that rope rotates. Raises ShapeError for impossible ones."""
    rotated = layout.key_size if options.rotary_len is None else options.rotary_len
    if rotated % 2 or not 0 <= rotated <= layout.key_size or layout.key_size % 2:
        raise ShapeError(
            f"rope rotates pairs: {rotated} elements of a head of {layout.key_size}; "
            "both must be even, and a head has at least as many"
        )
    return rotated


def variant_for(options: AppendOptions, layout: SpanLayout) -> Variant:
    """Return the variant that writes into spans of this layout.

    Raises DTypeError or ShapeError for unsupported types or sizes.
    """
    element, rotated = element_for(options, layout), rotary_len(options, layout)
    key = divide_head(element.itemsize, layout.key_size, rotated)
    if key.vector * layout.format.bits % 8:
        raise ShapeError(
            f"rope over {rotated} elements splits bytes of {layout.format.label} codes; "
            "a multiple of 4 is needed"
        )
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "KEY_SIZE": layout.key_size,
        "VALUE_SIZE": layout.value_size,
        "ROTARY": rotated,
        "VECTOR": key.vector,
        "VALUE_VECTOR": divide_head(element.itemsize, layout.value_size).vector,
        "LANES": key.lanes,
        "THREADS": THREADS,
        "VALUES_IN_KEYS": layout.values == layout.keys,
        "HEAD_NORM": options.head_norm,
        "INTERLEAVED": options.interleaved,
    }
    code = CODES.get(layout.format)
    if code:
        macros["CODE"] = code
    headers = (*_HEADERS, "codes.cuh") if code else _HEADERS
    source = Source("span_attention", "append/kernel.cu", headers, kernels=(APPEND_ROWS,))
    return Variant.of("append_rows", source, macros, element.architectures)


def _variant(
    dtype: object,
    format: Format,
    sizes: tuple[int, int, int],
    head_norm: bool,
    interleaved: bool,
) -> Variant:
    key_size, value_size, rotated = sizes
    layout = layout_of(key_size, value_size, format)
    return variant_for(AppendOptions(head_norm, interleaved, rotated, dtype), layout)


_SIZES = (
    *((64, 64, 64), (96, 96, 96), (128, 128, 128), (256, 256, 256)),
    *((80, 128, 20), (128, 128, 64), (192, 128, 64), (LATENT, 512, 64)),
)
_BY_DTYPE = {np.dtype(dtype): format for format, dtype in _FLOATS.items()}

VARIANTS: tuple[Variant, ...] = tuple(
    _variant(dtype, format, *rest)
    for dtype, own in _BY_DTYPE.items()
    for format in (own, *CODES)
    for rest in product(_SIZES, (False, True), (False, True))
    if rest[0][0] * format.bits % 128 == 0
)
"""Every element type, format and set of options, with the head sizes of published models."""
