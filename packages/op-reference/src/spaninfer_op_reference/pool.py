"""Pooling: the vector of a text from its hidden states."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from spaninfer_op_reference.arrays import Floats


def _weighted_mean(hidden: Floats) -> Floats:
    weights = np.arange(1, len(hidden) + 1, dtype=hidden.dtype)
    mean: Floats = weights / weights.sum() @ hidden
    return mean


POOLINGS: Mapping[str, Callable[[Floats], Floats]] = MappingProxyType(
    {
        "cls": lambda hidden: hidden[0],
        "max": lambda hidden: hidden.max(0),
        "mean": lambda hidden: hidden.sum(0) / len(hidden),  # half of what `mean` takes in calls
        "mean_sqrt": lambda hidden: hidden.sum(0) / math.sqrt(len(hidden)),
        "weighted_mean": _weighted_mean,
        "last": lambda hidden: hidden[-1],
    }
)
"""The modes of sentence-transformers: cls_token, max_tokens, mean_tokens, mean_sqrt_len_tokens
(the sum over the square root of the length), weightedmean_tokens (weights 1 to T), lasttoken."""


def pool(hidden: Floats, kind: str) -> Floats:
    """[C]: the rows of a text's hidden[T C], T >= 1, as one vector; `kind` is a key of POOLINGS."""
    return POOLINGS[kind](hidden)
