"""Head sizes of published models and their spans, for which variants are compiled ahead."""

from __future__ import annotations

from typing import Final

from span_attention.layout import Format, SpanLayout

LATENT: Final = 576  # the keys of DeepSeek, whose first 512 elements are the values
SIZES: Final = ((64, 64), (96, 96), (128, 128), (256, 256), (192, 128), (LATENT, 512))
"""Elements of a key and of a value."""

OWN: Final = {"float16": Format.FLOAT16, "bfloat16": Format.BFLOAT16}
"""The format of unquantised spans, by the dtype of queries."""


def layout_of(key_size: int, value_size: int, format: Format) -> SpanLayout:
    """Return spans of one key head of one layer: their numbers do not change the variant."""
    return SpanLayout.contiguous(
        span_len=32,
        kv_heads=1,
        key_size=key_size,
        value_size=value_size,
        format=format,
        num_layers=1,
        values_in_keys=key_size == LATENT,
    )
