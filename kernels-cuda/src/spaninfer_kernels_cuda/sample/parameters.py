"""The sampling parameters of a request, as one record of device memory."""

from __future__ import annotations

import numpy as np

PARAMETERS = np.dtype(
    [
        ("seed", np.uint64),
        ("temperature", np.float32),  # below 1e-5: greedy
        ("top_k", np.int32),  # 0: all
        ("typical_p", np.float32),  # 1: all; truncates after top_k
        ("top_p", np.float32),  # 1: all
        ("min_p", np.float32),  # 0: all
        ("repetition", np.float32),  # 1: none; over prompt and output
        ("presence", np.float32),  # over the output
        ("frequency", np.float32),  # over the output
        ("ngram", np.int32),  # size of n-grams that must not repeat; 0: none
        ("prompt_len", np.int32),  # where the output begins in the token buffer
        ("bias_first", np.int32),  # its entries of `TokenLists.bias_ids` and `biases`, ids distinct
        ("bias_count", np.int32),
        ("word_first", np.int32),  # its bad words in `TokenLists.word_bounds`, never completed
        ("word_count", np.int32),
        ("end_first", np.int32),  # its `TokenLists.end_ids`, masked before position `end_until`
        ("end_count", np.int32),
        ("end_until", np.int32),
        ("masked", np.int32),  # 1: only tokens of its row of the mask are allowed
        ("logprobs", np.int32),  # top log-probabilities beside the sampled token's; -1: none
        ("processed", np.int32),  # 1: log-probabilities of processed logits, not of the model's
    ],
    align=True,
)
"""Struct SamplingParams of shared.cuh. Neutral values are not all zero: begin with `defaults`."""

assert PARAMETERS.itemsize == 88, "the size of struct SamplingParams"


def defaults(num_slots: int) -> np.ndarray:
    """Return records[N] that sample the model's distribution, without log-probabilities.

    >>> records = defaults(2)
    >>> records["temperature"][1] = 0.7
    >>> records.view(np.uint8).reshape(2, -1).shape
    (2, 88)
    """
    records = np.zeros(num_slots, PARAMETERS)
    for name in ("temperature", "typical_p", "top_p", "repetition"):
        records[name] = 1
    records["logprobs"] = -1
    return records
