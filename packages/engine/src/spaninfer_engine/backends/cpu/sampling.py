"""Sampling and log-probabilities on the CPU, by kernels; rare changes of logits by definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from spaninfer_kernels_cpu import Logprobs, Sampler, SamplingRow
from spaninfer_op_reference import GREEDY, NoToken, RowSampling, process
from spaninfer_op_reference import sample as sample_by_definition

from spaninfer_engine.request.logprobs import TokenLogprobs

Logits = NDArray[np.float32]


class CpuDraw:
    """Draws tokens from a vocabulary of `vocab`, as spaninfer_op_reference.sample does."""

    def __init__(self, vocab: int) -> None:
        self._sampler = Sampler(vocab)

    def __call__(
        self, logits: Logits, rows: Sequence[RowSampling]
    ) -> tuple[NDArray[np.int64], dict[int, NoToken]]:
        """Return the token of each row of logits[R V], and why there is none by row."""
        mine = [
            index for index, row in enumerate(rows) if row is not GREEDY and not _is_argmax(row)
        ]
        if not mine:
            return sample_by_definition(logits, rows)
        tokens = np.full(len(rows), -1)
        changed = any(_is_changed_before(rows[index]) for index in mine)
        chosen = logits if len(mine) == len(rows) and not changed else logits[mine]
        if changed:
            for at, index in enumerate(mine):
                if _is_changed_before(rows[index]):
                    chosen[at] = process(chosen[at], _only_before(rows[index]))
        tokens[mine] = self._sampler(chosen, [_row_of(rows[index]) for index in mine])
        left = np.flatnonzero(tokens < 0).tolist()
        if not left:
            return tokens, {}
        tokens[left], failed = sample_by_definition(logits[left], [rows[index] for index in left])
        return tokens, {left[index]: error for index, error in failed.items()}


class CpuLogprobs:
    """Log-probabilities of tokens of a vocabulary of `vocab`, as run.logprobs.token_logprobs."""

    def __init__(self, vocab: int) -> None:
        self._report, self._vocab = Logprobs(vocab), vocab

    def __call__(
        self,
        logits: Logits,
        ids: NDArray[np.integer],
        count: int,
        temperatures: Logits | None = None,
    ) -> TokenLogprobs:
        """Return the log-probability of ids[R] under logits[R V], with the `count` most likely;
        under logits over temperatures[R] where these are given.
        """
        token_ids = ids.astype(np.int32)
        found = self._report(logits, token_ids, min(count, self._vocab), temperatures)
        return TokenLogprobs(token_ids, found.chosen, found.ranks, found.top_ids, found.top)


def _is_argmax(row: RowSampling) -> bool:
    """Return True if the token is the most likely one; numpy takes 10 us for 150,000."""
    return row.is_greedy and row.is_plain


def _is_changed_before(row: RowSampling) -> bool:
    """Return True if logits are changed by something that the kernel does not implement.

    Biases and bans. Where a token is banned, penalties change nothing, so all bans may come first.
    """
    return not (
        row.logit_bias is None
        and row.allowed is None
        and row.banned is None
        and not row.bad_words
        and not row.no_repeat_ngram
    )


def _only_before(row: RowSampling) -> RowSampling:
    """Return the row's biases and bans alone."""
    return replace(
        row, temperature=1.0, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0
    )


def _row_of(row: RowSampling) -> SamplingRow:
    return SamplingRow(
        seed=row.seed,
        position=row.position,
        temperature=row.temperature,
        top_k=row.top_k,
        typical_p=row.typical_p,
        top_p=row.top_p,
        min_p=row.min_p,
        repetition_penalty=row.repetition_penalty,
        presence_penalty=row.presence_penalty,
        frequency_penalty=row.frequency_penalty,
        prompt_ids=np.ascontiguousarray(row.prompt_ids, np.int32),
        output_ids=np.ascontiguousarray(row.output_ids, np.int32),
    )
