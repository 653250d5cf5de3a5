"""Counters of a scheduler since it was made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from spaninfer_engine.request.request import FinishReason


@dataclass(slots=True)
class Counts:
    """Tokens, and sequences; they only grow."""

    generated_tokens: int = 0
    prefilled_tokens: int = 0  # computed before a sequence decodes, again after a preemption
    prefix_hit_tokens: int = 0  # of prompts, found in the prefix cache
    prefix_miss_tokens: int = 0  # of prompts, not found there
    preemptions: int = 0
    encoded_media: int = 0  # images, videos and clips that towers have seen, again after eviction
    begun_tokens: int = 0  # of prompts of sequences that a step has seen, or that have ended
    finished: Counter[FinishReason] = field(default_factory=Counter)
