"""Sampling parameters of one sequence, for devices that sample by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spaninfer_engine.step.plan import NewSequence

MAX_LISTED = 1024
"""Words of a sequence's lists, and as many biases: 2 MB for 256 sequences; OpenAI takes 300."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSamplingParams:
    """Parameters of the sampling kernel; a temperature of 0 is greedy.

    Penalties, n-grams and bad words look at the known tokens: the first `prompt_len` are the
    prompt. `biases` are added to the logits of `bias_ids`; `end_ids` are banned before position
    `end_until`. With `logprobs`, the device returns log-probabilities of the model's logits, or of
    `processed` ones: of the sampled token and of so many most likely ones. A `masked` sequence has
    a token mask in every step.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    prompt_len: int
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram: int = 0
    bias_ids: tuple[int, ...] = ()
    biases: tuple[float, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    end_ids: tuple[int, ...] = ()
    end_until: int = 0
    logprobs: int | None = None
    typical_p: float = 1.0
    processed: bool = False
    masked: bool = False

    @classmethod
    def of(cls, sequence: NewSequence) -> DeviceSamplingParams:
        """Return the parameters of a sequence."""
        asked = sequence.sampling
        bias = asked.logit_bias or {}
        prompt_len = len(sequence.token_ids)
        return cls(
            temperature=asked.temperature,
            top_k=asked.top_k,
            top_p=asked.top_p,
            min_p=asked.min_p,
            seed=sequence.seed,
            prompt_len=prompt_len,
            repetition_penalty=asked.repetition_penalty,
            presence_penalty=asked.presence_penalty,
            frequency_penalty=asked.frequency_penalty,
            no_repeat_ngram=asked.no_repeat_ngram,
            bias_ids=tuple(bias),
            biases=tuple(bias.values()),
            bad_words=sequence.banned,
            end_ids=_end_ids(sequence),
            end_until=prompt_len + asked.min_tokens,
            logprobs=asked.logprobs,
            typical_p=asked.typical_p,
            processed=asked.processed_logprobs,
            masked=asked.mask is not None or sequence.grammar is not None,
        )

    @property
    def has_penalties(self) -> bool:
        """True if logits are changed before a token is sampled."""
        return bool(
            self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.no_repeat_ngram
            or self.num_listed
        )

    @property
    def num_listed(self) -> int:
        """Words that the lists take in a device's memory, which has room for MAX_LISTED."""
        return _num_listed(len(self.bias_ids), self.bad_words, self.end_ids)


class SamplingWork(NamedTuple):
    """The number of rows with work beyond truncation and a random number per token."""

    penalties: int = 0  # logits are changed before
    typical: int = 0
    logprobs: int = 0

    @classmethod
    def of(cls, params: DeviceSamplingParams) -> SamplingWork:
        """Return the work of a sequence with these parameters."""
        return cls(params.has_penalties, params.typical_p < 1, params.logprobs is not None)


def fits_kernel(sequence: NewSequence) -> bool:
    """Return True if the sampling kernel implements everything that the sequence requests.

    That is all of SamplingParams, as long as there is room for the lists of biases and bad words.
    """
    num_biases = len(sequence.sampling.logit_bias or ())
    return _num_listed(num_biases, sequence.banned, _end_ids(sequence)) <= MAX_LISTED


def _end_ids(sequence: NewSequence) -> tuple[int, ...]:
    """Return the ids that end the sequence, where some of its tokens must not."""
    return sequence.early_end_ids if sequence.sampling.min_tokens else ()


def _num_listed(
    num_biases: int, bad_words: Sequence[tuple[int, ...]], end_ids: Sequence[int]
) -> int:
    """Return the words that these lists take."""
    words = len(bad_words) + 1 + sum(map(len, bad_words)) if bad_words else 0
    return num_biases + words + len(end_ids)
