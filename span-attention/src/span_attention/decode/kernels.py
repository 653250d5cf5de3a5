"""The kernels of decode: their signatures."""

from __future__ import annotations

from typing import Final, NamedTuple

from spaninfer_kernel_launch import Float32, Int32, Int64, Pointer, Signature, UInt32


class PlanArguments(NamedTuple):
    """Arguments of decode_plan."""

    totals: Pointer
    seq_lens: Pointer
    requests: Int32
    items: Int32
    window: Int32
    tile_tokens: Int32
    most_warps: Int32
    most_blocks: Int32


class AttendArguments(NamedTuple):
    """Arguments of decode_attend; strides of spans and heads are bytes, others elements."""

    out: Pointer
    query: Pointer
    span_tables: Pointer
    table_rows: Pointer
    seq_lens: Pointer
    plan: Pointer
    parts: Pointer
    keys: Pointer
    values: Pointer
    key_scales: Pointer
    value_scales: Pointer
    alibi_slopes: Pointer
    sinks: Pointer
    softmax_scale: Float32
    softcap: Float32
    window: Int32
    requests: Int32
    group: Int32
    kv_heads: Int32
    span_shift: Int32
    table_stride: Int64
    query_stride: Int64
    span_stride: UInt32
    key_head: UInt32
    value_head: UInt32
    key_scale_head: UInt32
    value_scale_head: UInt32
    lse: Pointer


DECODE_PLAN: Final = Signature("decode_plan", PlanArguments)
DECODE_ATTEND: Final = Signature("decode_attend", AttendArguments)
