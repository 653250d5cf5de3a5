"""The TMA map of a layer's keys."""

from __future__ import annotations

from typing import Final

from spaninfer_kernel_launch import encode_tensor_map

from span_attention.layout import SpanLayout

_ALL_SPANS: Final = 2**31 - 1  # their number is not checked, nor are the tables
COLUMNS: Final = 64  # elements of a row of a tile in shared memory


def key_map(keys: int, layout: SpanLayout, dtype: str, box_tokens: int) -> bytes:
    """Return the map of a layer's keys of one head, 16-bit floats, at this address, as [S L D]."""
    strides = (layout.span_stride, layout.keys.token_stride)
    return encode_tensor_map(
        keys,
        dtype,
        shape=(_ALL_SPANS, layout.span_len, layout.key_size),
        strides=(*(stride // 2 for stride in strides), 1),
        box=(1, box_tokens, COLUMNS),
    )


def line_map(query: int, dtype: str, lines: int, size: int, box: int) -> bytes:
    """Return the map of queries[lines size], of which `box` lines are copied at once."""
    return encode_tensor_map(
        query,
        dtype,
        shape=(1, lines, size),
        strides=(lines * size, size, 1),
        box=(1, box, COLUMNS),
    )
