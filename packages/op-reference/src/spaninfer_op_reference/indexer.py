"""The indexer of sparse attention: which keys a query reads (DeepSeek-V3.2, 2025, section 2.1).

Letters: T queries, N keys, H heads of the indexer, D their size, k keys that a query reads.
"""

from __future__ import annotations

import numpy as np

from spaninfer_op_reference.arrays import Floats, Ints
from spaninfer_op_reference.topk import topk


def index_scores(query: Floats, weights: Floats, keys: Floats) -> Floats:
    """[T N]: the sums over heads of weights[T H] * relu(q . k), of query[T H D] and keys[N D].

    The published factor (H * D) ** -0.5 is left out: it is positive and the same for all keys, so
    no selection depends on it. Nor does one on the published Hadamard rotation of q and k.
    """
    products = np.maximum(query.swapaxes(0, 1) @ keys.T, 0)
    scores: Floats = (weights.T[..., None] * products).sum(0)
    return scores


def select_keys(query: Floats, weights: Floats, keys: Floats, positions: Ints, top_k: int) -> Ints:
    """[T k]: the positions of the keys[N D] with the largest `index_scores`, in ascending order.

    k is top_k, or N where that is less. A query at position p sees keys 0 to p; where they are
    fewer than k, all are selected, and -1 follows. Of equal scores the lower position is selected;
    NaN is less than any number.
    """
    scores = index_scores(query, weights, keys)
    hidden = np.arange(len(keys)) > positions[:, None]
    _, selected = topk(np.where(hidden | np.isnan(scores), -np.inf, scores), top_k)
    selected = np.sort(selected, axis=-1)
    return np.where(selected > positions[:, None], -1, selected).astype(np.int32)
