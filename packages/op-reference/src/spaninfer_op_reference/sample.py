"""Sampling: from logits to tokens.

The order, and why:

1. bias                  part of the model's logits, as the OpenAI API defines it
2. allowed and banned    masks; -inf stays -inf from here on, so their place among the penalties
                         does not matter
3. repetition penalty    over prompt and output; before the two that subtract, because it divides,
                         and should not depend on them
4. presence, frequency   over the output
5. repeated n-grams      a mask again
   A greedy row takes the largest logit here, of equal ones the smallest id.
6. temperature           before truncation, so that top-p, min-p and typical see the distribution
                         that is sampled; top-k is not affected
7. top-k, typical, top-p, min-p     each on the candidates of the one before
8. sampling

Others mask after the penalties (transformers, DashInfer) and apply top-k before the temperature
(DashInfer), with the same result. The result differs for two: transformers applies typical last,
and vLLM min-p before top-k and top-p.

Sampling is Gumbel-max, as an exponential race: token i arrives at time E_i / p_i, E_i being its own
exponential number, and the first one wins, with probability p_i. In logarithms that is the argmax
of logit_i + Gumbel_i, which needs no sum over the vocabulary. E_i depends on seed, position and
token id alone, so a token never depends on the batch, and a winner stays the winner when others
leave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from spaninfer_op_reference.arrays import Floats, Ints
from spaninfer_op_reference.candidates import (
    Candidates,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    keep_typical,
    within_reach,
)
from spaninfer_op_reference.logits import (
    Choice,
    add_bias,
    allow,
    ban,
    ngram_ends,
    penalize_frequency,
    penalize_repetition,
    word_ends,
)
from spaninfer_op_reference.philox import uniform

REACH = 26.0
"""Gumbel numbers of `uniform` lie within -2.9 and 22.9: tokens further below never win."""

COLDEST = 1e-5
"""Temperatures below are 0: nothing but the largest logit would be within reach."""


def _no_ids() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSampling:
    """Sampling parameters of a row; the defaults sample the model's distribution."""

    seed: int = 0  # 64 bits
    position: int = 0  # of the sampled token in its request
    temperature: float = 1.0  # below COLDEST: greedy
    top_k: int = 0  # 0: all
    typical_p: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram: int = 0  # 0: off
    logit_bias: tuple[Ints, Floats] | None = None  # token ids, and their additive biases
    allowed: Choice | None = None  # None: all
    banned: Choice | None = None  # among others the end ids before min_tokens
    bad_words: Sequence[Sequence[int]] = ()  # sequences of ids that must not be completed
    prompt_ids: Ints = field(default_factory=_no_ids)
    output_ids: Ints = field(default_factory=_no_ids)

    @property
    def is_greedy(self) -> bool:
        """True if the argmax is taken without random numbers."""
        return self.temperature < COLDEST

    @property
    def is_plain(self) -> bool:
        """True if the logits are unchanged but for the temperature."""
        return (
            self.repetition_penalty == 1.0
            and not (self.presence_penalty or self.frequency_penalty or self.no_repeat_ngram)
            and self.logit_bias is None
            and self.allowed is None
            and self.banned is None
            and not self.bad_words
        )


GREEDY = RowSampling(temperature=0.0)
"""The most likely token. One for all rows is told from others at once."""


class NoToken(ValueError):
    """A row of logits from which nothing can be sampled."""

    def __init__(self, row: int, largest: float) -> None:
        self.row, self.largest = row, largest
        why = "every token is masked" if largest == -math.inf else f"their maximum is {largest}"
        super().__init__(f"no token can be chosen from the logits of row {row}: {why}")


def sample(
    logits: Floats, rows: Sequence[RowSampling]
) -> tuple[NDArray[np.int64], dict[int, NoToken]]:
    """Return a token per row of logits[R V], and an error for each row that has none.

    Rows do not influence each other: neither their tokens nor their errors. Raises ValueError where
    not every row of logits has its own `rows`.
    """
    if len(logits) != len(rows):
        raise ValueError(f"logits have {len(logits)} rows, but {len(rows)} say how to sample")
    tokens, failed = _largest(logits, range(len(rows)))
    for index, row in enumerate(rows):
        if row is GREEDY or index in failed or (row.is_greedy and row.is_plain):
            continue
        processed = process(logits[index], row)
        (tokens[index],), failure = _largest(processed[None], [index])
        failed |= failure
        if not failure and not row.is_greedy:
            tokens[index] = draw(processed, row)
    return tokens, failed


def process(logits: Floats, row: RowSampling) -> Floats:
    """Return logits[V] after bias, masks, penalties and, unless the row is greedy, temperature.

    Tempered logits are shifted: their largest is 0, so that no temperature makes them overflow.
    """
    if row.is_plain:
        return _temper(logits, row)
    known = np.concatenate([row.prompt_ids, row.output_ids])
    if row.logit_bias is not None:
        logits = add_bias(logits, *row.logit_bias)
    if row.allowed is not None:
        logits = allow(logits, row.allowed)
    if row.banned is not None:
        logits = ban(logits, row.banned)
    if row.bad_words:
        logits = ban(logits, word_ends(known, row.bad_words))
    if row.repetition_penalty != 1:
        logits = penalize_repetition(logits, known, row.repetition_penalty)
    if row.presence_penalty or row.frequency_penalty:
        logits = penalize_frequency(
            logits, row.output_ids, row.presence_penalty, row.frequency_penalty
        )
    if row.no_repeat_ngram:
        logits = ban(logits, ngram_ends(known, row.no_repeat_ngram))
    return _temper(logits, row)


def choose_candidates(logits: Floats, row: RowSampling) -> Candidates:
    """Return the candidates that top-k, typical, top-p and min-p keep of processed logits[V]."""
    candidates = within_reach(logits, REACH)
    if row.top_k:
        candidates = keep_top_k(candidates, row.top_k)
    if row.typical_p < 1:
        candidates = keep_typical(candidates, row.typical_p)
    if row.top_p < 1:
        candidates = keep_top_p(candidates, row.top_p)
    if row.min_p > 0:
        candidates = keep_min_p(candidates, row.min_p)
    return candidates


def draw(logits: Floats, row: RowSampling) -> int:
    """Return the candidate of processed logits[V] that wins the exponential race."""
    candidates = choose_candidates(logits, row)
    noise = gumbel(uniform(row.seed, row.position, candidates.ids))
    return int(candidates.ids[(candidates.logits + noise).argmax()])


def gumbel(u: Floats) -> NDArray[np.float64]:
    """Return -log(E) of the exponential numbers E = -log(1 - u), u[N] in (0, 1).

    Small E win, and come from small u, which floating point resolves best.
    """
    return -np.log(-np.log1p(-u.astype(np.float64)))


def _temper(logits: Floats, row: RowSampling) -> Floats:
    if row.is_greedy or row.temperature == 1:
        return logits
    largest = logits.max()
    if not np.isfinite(largest):  # as it is: what says why no token can be chosen
        return logits
    tempered: Floats = (logits - largest) / row.temperature
    return tempered


def _largest(logits: Floats, rows: Sequence[int]) -> tuple[NDArray[np.int64], dict[int, NoToken]]:
    """Return the argmax of logits[R V], smallest id first, and errors by number in `rows`.

    numpy's argmax stops at the first NaN, so looking at the maximum finds every NaN.
    """
    tokens = logits.argmax(-1)
    maxima = logits[np.arange(len(tokens)), tokens]
    failed = {
        rows[index]: NoToken(rows[index], float(maxima[index]))
        for index in np.flatnonzero(~np.isfinite(maxima)).tolist()
    }
    return tokens, failed
