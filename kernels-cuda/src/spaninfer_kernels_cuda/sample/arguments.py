"""Arguments of a sampling launch beside its sizes, and the status of each row."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class Status(IntEnum):
    """The outcome of a row."""

    SAMPLED = 0
    ALL_MASKED = 1  # no logit is above -inf
    INFINITE = 2  # a logit is +inf
    NOT_A_NUMBER = 3


class SampleBatch(NamedTuple):
    """The rows to sample: device arrays, or their addresses.

    `parameters` holds records of `PARAMETERS` as uint8[N 88]; slots[R] int32 names the record of
    each row of logits[R V], positions[R] int32 the position of the token sampled from it. In `mask`
    int32[N ceil(V / 32)], bit t % 32 of word t // 32 is set where token t is allowed; it is read
    for records with `masked`. `workspace` is needed where a record has penalties, bias, bad words
    or a minimum length: it receives the processed logits. `kept` is needed where a record has a
    typical_p: it receives, in rows of whole packs of 16 bytes, the logits of the tokens that this
    keeps and -inf for the others, or for a row with a mask or processed logits a bit per token.
    """

    logits: object
    parameters: object
    slots: object
    positions: object
    mask: object = None
    workspace: object = None
    kept: object = None


@dataclass(frozen=True, slots=True)
class TokenLists:
    """Lists that records point into by first entry and count: device arrays, or their addresses.

    Bad word i is word_tokens[word_bounds[i] : word_bounds[i + 1]]; one of a single token masks it.
    """

    bias_ids: object = None  # int32
    biases: object = None  # float32
    word_bounds: object = None  # int32
    word_tokens: object = None  # int32
    end_ids: object = None  # int32


class Busy(NamedTuple):
    """The rows of a launch that ask for what only some do: more blocks share each where few do."""

    typical: int
    logprobs: int


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of rows whose record requests them: device arrays, or their addresses.

    The first entries of a row of `top_ids` and `top`, as many as its record requests, are written,
    most likely first; -1 and -inf where fewer tokens are allowed.
    """

    chosen: object  # float32[R]
    ranks: object  # int32[R]; 1 is the argmax
    top_ids: object  # int32[R top]
    top: object  # float32[R top]
