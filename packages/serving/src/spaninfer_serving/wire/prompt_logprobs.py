"""Log-probabilities of a prompt's tokens as they travel, in vLLM's form."""

from __future__ import annotations

from typing import TypeAlias

from pydantic import BaseModel


class PromptLogprob(BaseModel):
    """The log-probability of a token in one place of the prompt, and its rank there (1: first)."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs: TypeAlias = list[dict[int, PromptLogprob] | None]
"""For each token of the prompt, it and the top tokens in its place by their ids; null for the
first, in front of which there is nothing."""
