"""The kernels of sampling: what each takes."""

from __future__ import annotations

from typing import Final, NamedTuple

from spaninfer_kernel_launch import Float32, Int32, Int64, Pointer, Signature


class Sizes(NamedTuple):
    """Logits of a row; elements from row to row of logits, and of the token buffer."""

    length: Int32
    stride: Int64
    token_stride: Int32


class ReviseArguments(NamedTuple):
    """What sample_revise takes: it applies penalties, bias and bans, before a draw."""

    touched: Pointer
    revised: Pointer
    logits: Pointer
    all_params: Pointer
    slots: Pointer
    positions: Pointer
    tokens: Pointer
    bias_ids: Pointer
    biases: Pointer
    word_bounds: Pointer
    word_tokens: Pointer
    end_ids: Pointer


class DrawArguments(NamedTuple):
    """What sample_draw takes: it gives each row its token."""

    out: Pointer
    status: Pointer
    tokens: Pointer
    logits: Pointer
    all_params: Pointer
    slots: Pointer
    positions: Pointer
    allowed: Pointer
    touched: Pointer
    revised: Pointer


class ReportArguments(NamedTuple):
    """What sample_report takes: it gives the log-probabilities of what was drawn."""

    chosen: Pointer
    ranks: Pointer
    top_ids: Pointer
    top: Pointer
    top_stride: Int32
    drawn: Pointer
    status: Pointer
    logits: Pointer
    all_params: Pointer
    slots: Pointer
    positions: Pointer
    allowed: Pointer
    touched: Pointer
    revised: Pointer
    length: Int32
    stride: Int64


class RecordArguments(NamedTuple):
    """What make_records takes: of each parameter, an array with one per row (or 0) and a value."""

    records: Pointer
    slots: Pointer
    positions: Pointer
    rows: Int32
    given_positions: Pointer
    seeds: Pointer
    seed: Int64
    temperatures: Pointer
    temperature: Float32
    top_ks: Pointer
    top_k: Int32
    top_ps: Pointer
    top_p: Float32
    min_ps: Pointer
    min_p: Float32
    masked: Int32


SAMPLE_REVISE: Final = Signature("sample_revise", ReviseArguments, Sizes)
SAMPLE_DRAW: Final = Signature("sample_draw", DrawArguments, Sizes)
SAMPLE_REPORT: Final = Signature("sample_report", ReportArguments)
MAKE_RECORDS: Final = Signature("make_records", RecordArguments)
