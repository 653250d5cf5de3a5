"""The kernels of prefill: their signatures."""

from __future__ import annotations

from typing import Final, NamedTuple

from spaninfer_kernel_launch import Float32, Int32, Int64, Pointer, Signature, TensorMap


class PlanArguments(NamedTuple):
    """Arguments of prefill_plan."""

    plan: Pointer
    query_start_loc: Pointer
    seq_lens: Pointer
    slices: Int32
    tile_rows: Int32
    key_block: Int32
    window: Int32
    packs: Int32
    most_sharers: Int32
    causal: Int32


class GeneralArguments(NamedTuple):
    """Arguments of prefill_general; strides of keys, values and scales are bytes."""

    out: Pointer
    query: Pointer
    query_stride: Int64
    query_head: Int32
    span_tables: Pointer
    table_rows: Pointer
    plan: Pointer
    num_slices: Int32
    table_stride: Int32
    span_shift: Int32
    heads: Int32
    pack: Int32
    kv_heads: Int32
    softmax_scale: Float32
    softcap: Float32
    window: Int32
    alibi_slopes: Pointer
    sinks: Pointer
    keys: Pointer
    key_span: Int64
    key_head: Int64
    key_token: Int64
    key_scales: Pointer
    key_scales_span: Int64
    key_scales_head: Int64
    key_scales_token: Int64
    values: Pointer
    value_span: Int64
    value_head: Int64
    value_token: Int64
    value_scales: Pointer
    value_scales_span: Int64
    value_scales_head: Int64
    value_scales_token: Int64
    lse: Pointer
    ahead: Int32
    biases: Pointer
    reach: Int32


class HopperArguments(NamedTuple):
    """Arguments of prefill_hopper."""

    out: Pointer
    query_map: TensorMap
    key_map: TensorMap
    value_map: TensorMap
    span_tables: Pointer
    table_rows: Pointer
    plan: Pointer
    workspace: Pointer
    num_slices: Int32
    table_stride: Int32
    span_shift: Int32
    heads: Int32
    pack: Int32
    kv_heads: Int32
    box_tokens: Int32
    softmax_scale: Float32
    softcap: Float32
    window: Int32
    alibi_slopes: Pointer
    sinks: Pointer
    lse: Pointer
    ahead: Int32
    biases: Pointer
    reach: Int32


PREFILL_PLAN: Final = Signature("prefill_plan", PlanArguments)
PREFILL_GENERAL: Final = Signature("prefill_general", GeneralArguments)
PREFILL_HOPPER: Final = Signature("prefill_hopper", HopperArguments)
