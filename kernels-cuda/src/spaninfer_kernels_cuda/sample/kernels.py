"""The kernels of sampling: their signatures."""

from __future__ import annotations

from typing import Final, NamedTuple

from spaninfer_kernel_launch import Float32, Int32, Int64, Pointer, Signature


class Sizes(NamedTuple):
    """Logits per row; elements from row to row of the logits and of the token buffer."""

    length: Int32
    stride: Int64
    token_stride: Int32


class PenaltyArguments(NamedTuple):
    """Arguments of sample_penalties, which applies penalties, bias and bad words."""

    changed: Pointer
    processed: Pointer
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


class TypicalArguments(NamedTuple):
    """Arguments of sample_typical, which writes a mask of the tokens that typical_p keeps."""

    kept: Pointer
    logits: Pointer
    all_params: Pointer
    slots: Pointer
    positions: Pointer
    allowed: Pointer
    changed: Pointer
    processed: Pointer


class TokenArguments(NamedTuple):
    """Arguments of sample_tokens, which samples a token per row."""

    out: Pointer
    status: Pointer
    tokens: Pointer
    logits: Pointer
    all_params: Pointer
    slots: Pointer
    positions: Pointer
    allowed: Pointer
    kept: Pointer
    changed: Pointer
    processed: Pointer


class LogprobArguments(NamedTuple):
    """Arguments of sample_logprobs: log-probabilities of sampled tokens and of the top ones."""

    chosen: Pointer
    ranks: Pointer
    top_ids: Pointer
    top: Pointer
    top_stride: Int32
    sampled: Pointer
    status: Pointer
    logits: Pointer
    all_params: Pointer
    slots: Pointer
    positions: Pointer
    allowed: Pointer
    changed: Pointer
    processed: Pointer
    length: Int32
    stride: Int64


class RecordArguments(NamedTuple):
    """Arguments of make_records: per parameter, an array with one entry per row (or 0), a value."""

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


SAMPLE_PENALTIES: Final = Signature("sample_penalties", PenaltyArguments, Sizes)
SAMPLE_TYPICAL: Final = Signature("sample_typical", TypicalArguments, Sizes)
SAMPLE_TOKENS: Final = Signature("sample_tokens", TokenArguments, Sizes)
SAMPLE_LOGPROBS: Final = Signature("sample_logprobs", LogprobArguments)
MAKE_RECORDS: Final = Signature("make_records", RecordArguments)
