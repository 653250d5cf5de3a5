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
    """Arguments of sample_typical, which writes rows of the tokens that typical_p keeps.

    There may be fewer clusters than `rows`, but no fewer than rows with work: also in logprobs.
    """

    kept: Pointer
    logits: Pointer
    all_params: Pointer
    slots: Pointer
    positions: Pointer
    allowed: Pointer
    changed: Pointer
    processed: Pointer
    rows: Int32


class TokenArguments(NamedTuple):
    """Arguments of sample_tokens, which samples a token per row.

    With `is_given`, the kernel writes `all_params`, `slots` and `positions` itself, for each row:
    each of the parameters below has a value for all rows, or an array with one for each.
    """

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
    is_given: Int32 = 0
    given_positions: Pointer = 0
    seeds: Pointer = 0
    seed: Int64 = 0
    temperatures: Pointer = 0
    temperature: Float32 = 0.0
    top_ks: Pointer = 0
    top_k: Int32 = 0
    top_ps: Pointer = 0
    top_p: Float32 = 0.0
    min_ps: Pointer = 0
    min_p: Float32 = 0.0


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
    rows: Int32
    length: Int32
    stride: Int64


SAMPLE_PENALTIES: Final = Signature("sample_penalties", PenaltyArguments, Sizes)
SAMPLE_TYPICAL: Final = Signature("sample_typical", TypicalArguments, Sizes)
SAMPLE_TOKENS: Final = Signature("sample_tokens", TokenArguments, Sizes)
SAMPLE_LOGPROBS: Final = Signature("sample_logprobs", LogprobArguments)
