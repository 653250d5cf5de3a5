"""Log-probabilities on the host: spaninfer_op_reference.top_logprobs, faster.

While they are computed, every request waits for its next token. A row of 152,000 tokens takes
0.8 ms; by the definition, which makes arrays of all rows for each of its steps, 3 (one of two busy
cores of an AMD EPYC, 2026-11-22).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.request.logprobs import TokenLogprobs

Logits = NDArray[np.float32]

_BLOCK = 128  # of the most likely n tokens, all lie in the n blocks with the largest maxima


def token_logprobs(
    logits: Logits,
    ids: NDArray[np.integer],
    count: int,
    temperatures: Logits | None = None,
) -> TokenLogprobs:
    """Return the log-probability of ids[R] under logits[R V], with the `count` most likely; under
    logits over temperatures[R] where these are given.

    Ranks count from 1; of tokens equally likely, the smaller id is first.
    """
    scratch = np.empty(logits.shape[1], np.float32)
    found = TokenLogprobs.empty(len(logits), min(count, logits.shape[1]))
    for at, (row, token_id) in enumerate(zip(logits, ids.tolist(), strict=True)):
        if temperatures is not None and temperatures[at] != 1:
            row = (row - row.max()) / temperatures[at]  # as it is sampled from
        _report_row(row, token_id, scratch, found, at)
    return found


def _report_row(row: Logits, token_id: int, scratch: Logits, found: TokenLogprobs, at: int) -> None:
    """Write what is said of one token into the arrays."""
    peak = row.max()
    if np.isnan(peak):  # such a row cannot be sorted, and says nothing of any token
        found.token_ids[at], found.ranks[at], found.logprobs[at] = token_id, 1, np.nan
        found.top_ids[at], found.top[at] = np.arange(found.top.shape[1]), np.nan
        return
    np.exp(np.subtract(row, peak, out=scratch), out=scratch)
    total = peak + np.log(scratch.sum())
    logit = row[token_id]
    ahead = int(np.count_nonzero(row > logit) + np.count_nonzero(row[:token_id] == logit))
    top_ids = _top_ids(row, found.top.shape[1])
    found.token_ids[at], found.ranks[at] = token_id, ahead + 1
    found.logprobs[at] = logit - total
    found.top_ids[at], found.top[at] = top_ids, row[top_ids] - total


def _top_ids(row: Logits, count: int) -> NDArray[np.intp]:
    """Return the ids of the `count` most likely tokens of row[V], most likely first."""
    maxima = np.maximum.reduceat(row, np.arange(0, len(row), _BLOCK))
    firsts = np.sort(_largest(maxima, count)) * _BLOCK
    ids = (firsts[:, None] + np.arange(_BLOCK)).ravel()
    ids = ids[ids < len(row)]
    return ids[_largest(row[ids], count)]


def _largest(values: Logits, count: int) -> NDArray[np.intp]:
    """Return where the `count` largest of values[N] are, largest first; of equal ones the first."""
    if not count:
        return np.zeros(0, np.intp)
    last = max(len(values) - count, 0)
    places = np.flatnonzero(values >= np.partition(values, last)[last])
    return places[np.argsort(-values[places], kind="stable")[:count]]
