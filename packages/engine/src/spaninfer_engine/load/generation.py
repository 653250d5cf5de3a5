"""What a checkpoint says about generating: the ids that end an answer, and sampling defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SAMPLING_KEYS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram",
}
"""Keys of generation_config.json that change what is sampled, and our names for them."""


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling values that a generation_config.json sets, as fields of SamplingParams.

    `do_sample: false` is a temperature of 0, whatever else the file says. Lengths are not taken
    over: how much is generated is for the caller to say.
    """
    chosen = {
        ours: generation_config[theirs]
        for theirs, ours in SAMPLING_KEYS.items()
        if generation_config.get(theirs) is not None
    }
    if generation_config.get("do_sample") is False:
        chosen["temperature"] = 0.0
    return chosen


def end_ids(*configs: Mapping[str, Any]) -> frozenset[int]:
    """All values of eos_token_id, a number or a list of them, in any of the configs."""
    found: set[int] = set()
    for config in configs:
        value = config.get("eos_token_id")
        values = value if isinstance(value, list) else [value]
        found.update(each for each in values if isinstance(each, int))
    return frozenset(found)
