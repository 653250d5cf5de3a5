"""The kernels of latent attention: their signatures."""

from __future__ import annotations

from typing import Final, NamedTuple

from spaninfer_kernel_launch import Float32, Int32, Int64, Pointer, Signature, TensorMap


class PlanArguments(NamedTuple):
    """Arguments of mla_plan."""

    words: Pointer
    ends: Pointer
    query_start_loc: Pointer
    seq_lens: Pointer
    table_rows: Pointer
    slices: Int32
    heads: Int32
    lanes: Int32
    parts: Int32
    splits: Int32
    causal: Int32
    most: Int32


class AttendArguments(NamedTuple):
    """Arguments of mla_wide and mla_narrow."""

    out: Pointer
    lse: Pointer
    parts: Pointer
    plan: Pointer
    query_map: TensorMap
    key_map: TensorMap
    span_tables: Pointer
    table_stride: Int64
    span_shift: Int32
    box_tokens: Int32
    softmax_scale: Float32
    num_parts: Int32
    lines_of_position: Int32
    lanes: Int32


class CodesArguments(NamedTuple):
    """Arguments of mla_codes; the stride is bytes."""

    out: Pointer
    lse: Pointer
    parts: Pointer
    plan: Pointer
    query_map: TensorMap
    codes: Pointer
    scales: Pointer
    span_stride: Int64
    span_tables: Pointer
    table_stride: Int64
    span_shift: Int32
    softmax_scale: Float32
    num_parts: Int32
    lines_of_position: Int32
    lanes: Int32


class SelectedArguments(NamedTuple):
    """Arguments of mla_selected; strides of keys are bytes."""

    out: Pointer
    lse: Pointer
    parts: Pointer
    plan: Pointer
    query_map: TensorMap
    keys: Pointer
    span_stride: Int64
    token_stride: Int32
    span_tables: Pointer
    table_stride: Int64
    span_shift: Int32
    selected: Pointer
    most: Int32
    heads: Int32
    softmax_scale: Float32
    num_parts: Int32
    lines_of_position: Int32
    lanes: Int32


class MergeArguments(NamedTuple):
    """Arguments of mla_merge."""

    out: Pointer
    lse: Pointer
    parts: Pointer
    plan: Pointer
    num_parts: Int32
    lanes: Int32


MLA_PLAN: Final = Signature("mla_plan", PlanArguments)
MLA_WIDE: Final = Signature("mla_wide", AttendArguments)
MLA_NARROW: Final = Signature("mla_narrow", AttendArguments)
MLA_CODES: Final = Signature("mla_codes", CodesArguments)
MLA_SELECTED: Final = Signature("mla_selected", SelectedArguments)
MLA_MERGE: Final = Signature("mla_merge", MergeArguments)
