"""Logits processors: penalties, bias and masks of a row of logits[V]. All return a new row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spaninfer_op_reference.arrays import Floats, Ints

Choice: TypeAlias = NDArray[np.integer[Any]] | NDArray[np.bool_]
"""Tokens by their ids, or by a mask over the vocabulary."""


def add_bias(logits: Floats, ids: Ints, values: Floats) -> Floats:
    """Return the logits plus values[N] at ids[N]."""
    y = logits.copy()
    np.add.at(y, ids, values)
    return y


def allow(logits: Floats, ids: Choice) -> Floats:
    """Return the logits of ids, -inf elsewhere."""
    y = np.full_like(logits, -np.inf)
    y[ids] = logits[ids]
    return y


def ban(logits: Floats, ids: Choice) -> Floats:
    """Return the logits with -inf at ids."""
    y = logits.copy()
    y[ids] = -np.inf
    return y


def penalize_repetition(logits: Floats, ids: Ints, penalty: float) -> Floats:
    """Return the logits, those of ids over the penalty, or times it where they are negative.

    Keskar et al. 2019, "CTRL"; once per id, however often it occurs.
    """
    y = logits.copy()
    seen = y[ids]
    y[ids] = np.where(seen < 0, seen * penalty, seen / penalty)
    return y


def penalize_frequency(logits: Floats, ids: Ints, presence: float, frequency: float) -> Floats:
    """Return the logits less presence + frequency * (how often it occurs), for every one of ids."""
    y = logits.copy()
    seen, counts = np.unique(ids, return_counts=True)
    y[seen] -= (presence + frequency * counts).astype(y.dtype)
    return y


def ngram_ends(ids: Ints, n: int) -> Ints:
    """Return the tokens that would make the last n tokens a sequence that ids already hold."""
    if len(ids) < n:
        return ids[:0]
    grams = np.lib.stride_tricks.sliding_window_view(ids, n)
    start = ids[len(ids) - n + 1 :]
    ends: Ints = grams[(grams[:, :-1] == start).all(-1), -1]
    return ends


def word_ends(ids: Ints, words: Sequence[Sequence[int]]) -> Ints:
    """Return the last token of every bad word whose other tokens are the end of ids."""
    tail = ids[max(len(ids) - max(map(len, words), default=0), 0) :].tolist()
    ends = [
        word[-1]
        for word in words
        if len(word) <= len(tail) + 1 and [*word[:-1]] == tail[len(tail) - len(word) + 1 :]
    ]
    return np.array(ends, np.int64)
