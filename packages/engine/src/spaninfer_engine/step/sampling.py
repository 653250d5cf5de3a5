"""Sampling parameters of one sequence, as devices that sample by themselves are told them."""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_engine.plan import NewSequence

MAX_LISTED = 1024
"""Words of a sequence's lists, and as many biases: 2 MB for 256 sequences; OpenAI takes 300."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSamplingParams:
    """Parameters of the sampling kernel; a temperature of 0 is greedy.

    Penalties, n-grams and bad words look at the known tokens: the first `prompt_len` are the
    prompt. `biases` are added to the logits of `bias_ids`; `end_ids` are banned before position
    `end_until`. With `logprobs`, the device returns log-probabilities of the model's logits: of the
    sampled token and of so many most likely ones.
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
            end_ids=sequence.early_end_ids if asked.min_tokens else (),
            end_until=prompt_len + asked.min_tokens,
            logprobs=None if asked.processed_logprobs else asked.logprobs,
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
        words = len(self.bad_words) + 1 + sum(map(len, self.bad_words)) if self.bad_words else 0
        return len(self.bias_ids) + words + len(self.end_ids)


def fits_kernel(sequence: NewSequence) -> bool:
    """Return True if the sampling kernel implements everything that the sequence requests.

    It samples by temperature, top-k, top-p, min-p and seed, after biases, penalties and bans, as
    long as there is room for their lists, and returns log-probabilities of the model's logits;
    typical sampling and log-probabilities of processed logits are the host's.
    """
    asked = sequence.sampling
    return (
        not (asked.processed_logprobs and asked.logprobs is not None)
        and asked.typical_p == 1
        and DeviceSamplingParams.of(sequence).num_listed <= MAX_LISTED
    )
