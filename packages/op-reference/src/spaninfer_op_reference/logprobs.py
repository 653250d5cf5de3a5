"""Log-probabilities of tokens, as an API reports them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spaninfer_op_reference.activation import log_softmax
from spaninfer_op_reference.arrays import Floats, Ints
from spaninfer_op_reference.candidates import smallest


class Logprobs(NamedTuple):
    """Log-probabilities of R chosen tokens, and of the top n beside each."""

    chosen: Floats  # [R]
    rank: Ints  # [R] 1 is the argmax; equal tokens rank by id
    top_ids: Ints  # [R n] most likely first
    top: Floats  # [R n]


def top_logprobs(logits: Floats, ids: Ints, n: int) -> Logprobs:
    """Return the log-probability and rank of ids[R] under logits[R V], and of the top n."""
    logs = log_softmax(logits)
    chosen = np.take_along_axis(logs, ids[:, None], -1)
    before = np.arange(logits.shape[-1]) < ids[:, None]
    rank = 1 + ((logs > chosen) | ((logs == chosen) & before)).sum(-1)
    top_ids = np.zeros((len(logs), min(n, logs.shape[-1])), np.int64)
    for row, ids_of_row in zip(logs, top_ids, strict=True):
        ids_of_row[:] = smallest(-row, n)
    return Logprobs(chosen[:, 0], rank, top_ids, np.take_along_axis(logs, top_ids, -1))
