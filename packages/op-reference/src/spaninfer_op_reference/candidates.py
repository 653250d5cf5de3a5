"""Truncation: the tokens that top-k, typical, top-p and min-p keep.

Each cut sees the distribution that the cut before it left, normalised anew. Of equal tokens the
smaller ids stay.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from spaninfer_op_reference.activation import log_softmax, softmax
from spaninfer_op_reference.arrays import Floats, Ints

_FIRST_LOOK = 64  # most sets of candidates are smaller; a full sort costs 40 times as much


class Candidates(NamedTuple):
    """Token ids[N], rising, and their logits[N] over the temperature."""

    ids: Ints
    logits: Floats

    def take(self, index: Ints) -> Candidates:
        """Return the candidates at index[n], in the order of their ids."""
        index = np.sort(index)
        return Candidates(self.ids[index], self.logits[index])


def within_reach(logits: Floats, reach: float) -> Candidates:
    """Return the tokens of logits[V] that are at most `reach` below the largest."""
    ids = np.flatnonzero(logits >= logits.max() - reach)
    return Candidates(ids, logits[ids])


def keep_top_k(candidates: Candidates, k: int) -> Candidates:
    """Return the k most likely (Fan et al. 2018)."""
    return candidates.take(smallest(-candidates.logits, k))


def keep_typical(candidates: Candidates, mass: float) -> Candidates:
    """Return the fewest that together have the mass, closest to the expected surprise first.

    Meister et al. 2022, "Locally Typical Sampling": the surprise of a token is -log p, its
    expectation the entropy.
    """
    logs = log_softmax(candidates.logits)
    weights = np.exp(logs)
    entropy = -(weights * logs).sum()
    return candidates.take(_fewest(np.abs(-logs - entropy), weights, mass))


def keep_top_p(candidates: Candidates, mass: float) -> Candidates:
    """Return the fewest that together have the mass, most likely first (Holtzman et al. 2019)."""
    weights = softmax(candidates.logits)
    return candidates.take(_fewest(-candidates.logits, weights, mass))


def keep_min_p(candidates: Candidates, share: float) -> Candidates:
    """Return those at least `share` times as likely as the argmax (Nguyen et al. 2024)."""
    floor = candidates.logits.max() + math.log(share)
    return candidates.take(np.flatnonzero(candidates.logits >= floor))


def _fewest(keys: Floats, weights: Floats, mass: float) -> Ints:
    """Return the indices, smallest key first, up to the one with which the mass is reached."""
    count = _FIRST_LOOK
    while True:
        index = smallest(keys, count)
        sums = np.cumsum(weights[index], dtype=np.float64)
        if sums[-1] >= mass or len(index) == len(keys):
            return index[: int(np.searchsorted(sums, mass)) + 1]
        count *= 4


def smallest(keys: Floats, count: int) -> Ints:
    """Return the indices of the `count` smallest keys, smallest first, equal keys by index.

    NaN comes after every number, as in a sort.
    """
    index = np.arange(len(keys))
    if count < len(keys):
        beyond = np.partition(keys, count)[count]
        if not np.isnan(beyond):  # otherwise NaN may be among the smallest
            below, equal = np.flatnonzero(keys < beyond), np.flatnonzero(keys == beyond)
            index = np.sort(np.concatenate([below, equal[: count - len(below)]]))
    return index[np.argsort(keys[index], kind="stable")[:count]]
