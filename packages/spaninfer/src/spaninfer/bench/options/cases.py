"""The options that are timed, as fields of SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

BASE: Final[Mapping[str, Any]] = {"temperature": 0.8, "top_p": 0.9, "ignore_eos": True}
"""What every request asks for, with an option or without."""

NEVER: Final = "\ue000"
"""A character of the private use area, which no answer holds: these stop strings end nothing."""

NUM_BIASES: Final = 300  # as many as OpenAI takes


def options_of(vocab: int) -> dict[str, Mapping[str, Any]]:
    """Return the fields of each option, for a vocabulary of that size."""
    allowed = np.arange(vocab) % 2 == 0
    allowed.setflags(write=False)  # made once, as a caller with a fixed set of tokens does
    biased = range(0, vocab, max(1, vocab // NUM_BIASES))[:NUM_BIASES]
    return {
        "greedy": {"temperature": 0.0},
        "top_k": {"top_k": 50},
        "min_p": {"min_p": 0.05},
        "typical_p": {"typical_p": 0.9},
        "penalties": {
            "repetition_penalty": 1.1,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.5,
        },
        "no_repeat_ngram": {"no_repeat_ngram": 3},
        "logit_bias": {"logit_bias": dict.fromkeys(biased, 1.0)},
        "bad_words": {"bad_words": (f"no{NEVER}", f"never{NEVER}")},
        "mask": {"mask": lambda _: allowed},
        "stop": {"stop": tuple(f"{begin}{NEVER}" for begin in ("e", " the", "\n\n", "and"))},
        "logprobs": {"logprobs": 5},
        "processed_logprobs": {"logprobs": 5, "processed_logprobs": True},
        "prompt_logprobs": {"prompt_logprobs": 5},
    }
