"""The KV cache as it travels to who watches a server."""

from __future__ import annotations

from pydantic import BaseModel


class SequenceFigures(BaseModel):
    """A sequence that holds spans."""

    number: int  # rising
    prompt_tokens: int
    cached_tokens: int  # of the prompt, found in the prefix cache
    output_tokens: int
    decoding: bool  # has its prompt been computed?


class GroupCells(BaseModel):
    """The spans of one cache group, or neighbourhoods of them."""

    num_spans: int
    spans_per_cell: int
    states: str  # a digit per cell. 0: free, 1: a cached prefix, 2: in use, 3: shared by sequences
    owners: list[int]  # per cell: index of a sequence, or -1


class FirstTokens(BaseModel):
    """Requests by the time to their first token."""

    bounds: list[float]  # seconds, rising: counts[i] were no slower than bounds[i]
    counts: list[int]  # one more than bounds


class CacheFigures(BaseModel):
    """The answer to GET /cache_map."""

    span_len: int
    running: list[SequenceFigures]
    waiting: int  # sequences
    generated_tokens: int  # since the start
    prefilled_tokens: int
    prefix_hit_tokens: int
    uptime_s: float
    groups: list[GroupCells]
    first_token_seconds: FirstTokens
