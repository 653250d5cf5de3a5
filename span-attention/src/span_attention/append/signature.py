"""The signature of append_rows."""

from __future__ import annotations

from typing import Final, NamedTuple

from spaninfer_kernel_launch import Float32, Int32, Int64, Pointer, Signature


class AppendArguments(NamedTuple):
    """Addresses, and the numbers of the head norm; 0 for those that a variant does not have."""

    query_out: Pointer
    keys: Pointer
    values: Pointer
    key_scales: Pointer
    value_scales: Pointer
    query: Pointer
    key: Pointer
    value: Pointer
    cosine: Pointer
    sine: Pointer
    slot_mapping: Pointer
    query_weight: Pointer
    key_weight: Pointer
    eps: Float32
    weight_offset: Float32


class AppendSizes(NamedTuple):
    """Heads, strides of rows in elements, and those of the spans.

    The latter count from span to span, head, token: bytes of codes, else elements; and float32 of
    scales, which have one stride from span to span.
    """

    heads: Int32
    kv_heads: Int32
    span_len: Int32
    query_stride: Int64
    key_stride: Int64
    value_stride: Int64
    key_span: Int64
    key_head: Int64
    key_token: Int64
    value_span: Int64
    value_head: Int64
    value_token: Int64
    scales_span: Int64
    key_scales_head: Int64
    key_scales_token: Int64
    value_scales_head: Int64
    value_scales_token: Int64


APPEND_ROWS: Final = Signature("append_rows", AppendArguments, AppendSizes)
