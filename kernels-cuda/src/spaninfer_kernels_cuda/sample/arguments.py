"""What a launch of sampling is given beside a batch's rows, and what it says of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Status(IntEnum):
    """What became of a row."""

    DRAWN = 0
    ALL_MASKED = 1  # no logit is above -inf
    INFINITE = 2  # a logit is +inf
    NOT_A_NUMBER = 3


@dataclass(frozen=True, slots=True)
class Pools:
    """Lists that records point into: `first` entry and `count`. Device arrays, or their addresses.

    word i is word_tokens[word_bounds[i] : word_bounds[i + 1]]; a word of one token bans it.
    """

    bias_ids: object = None  # int32
    biases: object = None  # float32
    word_bounds: object = None  # int32
    word_tokens: object = None  # int32
    end_ids: object = None  # int32


@dataclass(frozen=True, slots=True)
class Report:
    """Where log-probabilities go, for rows whose record asks: device arrays, or their addresses.

    The first entries of a row of `top_ids` and `top`, as many as its record asks for, are written,
    likeliest first; -1 and -inf where fewer tokens are allowed.
    """

    chosen: object  # float32[R]
    ranks: object  # int32[R], 1 is the likeliest
    top_ids: object  # int32[R top]
    top: object  # float32[R top]
