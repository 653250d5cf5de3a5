"""Sampling on the CPU: by kernels where they cover the parameters, else by definition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from spaninfer_kernels_cpu import Sampler, SamplingRow
from spaninfer_op_reference import NoToken, RowSampling
from spaninfer_op_reference import sample as sample_by_definition

Logits = NDArray[np.float32]


class CpuDraw:
    """Draws tokens from a vocabulary of `vocab`, as spaninfer_op_reference.sample does."""

    def __init__(self, vocab: int) -> None:
        self._sampler = Sampler(vocab)

    def __call__(
        self, logits: Logits, rows: Sequence[RowSampling]
    ) -> tuple[NDArray[np.int64], dict[int, NoToken]]:
        """Return the token of each row of logits[R V], and why there is none by row."""
        mine = [index for index, row in enumerate(rows) if _is_for_kernel(row)]
        if not mine:
            return sample_by_definition(logits, rows)
        tokens = np.full(len(rows), -1)
        chosen = logits if len(mine) == len(rows) else logits[mine]
        tokens[mine] = self._sampler(chosen, [_row_of(rows[index]) for index in mine])
        left = np.flatnonzero(tokens < 0).tolist()
        if not left:
            return tokens, {}
        tokens[left], failed = sample_by_definition(logits[left], [rows[index] for index in left])
        return tokens, {left[index]: error for index, error in failed.items()}


def _is_for_kernel(row: RowSampling) -> bool:
    """Is the row drawn at random, after penalties and cuts alone?

    The most likely token is found by numpy, in 10 µs of 150,000; what a kernel knows nothing of,
    bans and biases among it, is rare.
    """
    return (
        not row.is_greedy
        and row.typical_p == 1
        and not row.no_repeat_ngram
        and row.logit_bias is None
        and row.allowed is None
        and row.banned is None
        and not row.bad_words
    )


def _row_of(row: RowSampling) -> SamplingRow:
    return SamplingRow(
        seed=row.seed,
        position=row.position,
        temperature=row.temperature,
        top_k=row.top_k,
        top_p=row.top_p,
        min_p=row.min_p,
        repetition_penalty=row.repetition_penalty,
        presence_penalty=row.presence_penalty,
        frequency_penalty=row.frequency_penalty,
        prompt_ids=np.ascontiguousarray(row.prompt_ids, np.int32),
        output_ids=np.ascontiguousarray(row.output_ids, np.int32),
    )
