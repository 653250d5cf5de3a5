"""Generation defaults of a checkpoint: the ids that end an answer, and sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spaninfer_engine.errors import CheckpointError, shown

SAMPLING_KEYS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "max_new_tokens": "max_tokens",
}
"""Keys of generation_config.json that change what is sampled, and our names for them."""

_COUNTS = frozenset({"top_k", "no_repeat_ngram", "max_tokens"})


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling values that a generation_config.json sets, as fields of SamplingParams.

    `do_sample: false` is a temperature of 0, whatever else the file says. `max_length` is not taken
    over: it counts the prompt, too, and old files have 20 there. Values are translated, not
    checked: a top_k of -1 keeps all tokens, a top_p of 0 only the most likely, and 50.0 is a count.
    """
    chosen = {
        ours: _whole(generation_config[theirs]) if ours in _COUNTS else generation_config[theirs]
        for theirs, ours in SAMPLING_KEYS.items()
        if generation_config.get(theirs) is not None
    }
    if chosen.get("top_k") == -1:
        chosen["top_k"] = 0
    if "top_p" in chosen and chosen["top_p"] == 0:
        del chosen["top_p"]
        chosen["top_k"] = 1
    if generation_config.get("do_sample") is False:
        chosen["temperature"] = 0.0
    return chosen


def _whole(value: Any) -> Any:
    """The integer that a float like 50.0 stands for; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def end_ids(configs: Mapping[str, Mapping[str, Any]]) -> frozenset[int]:
    """All values of eos_token_id, a number or a list of them, in any of the configs.

    `configs` are told apart by their files. CheckpointError where a value is something else.
    """
    found: set[int] = set()
    for file, config in configs.items():
        value = config.get("eos_token_id")
        values = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(each, bool) or not isinstance(each, int) for each in values):
            raise CheckpointError(
                f"{file}: eos_token_id is {shown(value)}; allowed is a token id, a list of them, "
                "or null"
            )
        found.update(values)
    return frozenset(found)
