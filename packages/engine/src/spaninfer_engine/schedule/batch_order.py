"""The order in which the prompts of one list are begun. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from sys import maxsize

from spaninfer_engine.request.request import SamplingParams


def longest_first(samplings: Sequence[SamplingParams]) -> list[int]:
    """Return the numbers of requests, those first whose answers may become longest; equal ones in
    the order given.

    Who gives a list waits for the whole of it. In any other order a long answer that comes late is
    computed nearly alone at the end, in steps that take as long as those of fifty. Longest first is
    the rule of Graham (1969), whose end is at most a third later than the best schedule's.

    >>> longest_first([SamplingParams(max_tokens=n) for n in (16, 200, 16, 31)])
    [1, 3, 0, 2]
    """
    limits = [maxsize if each.max_tokens is None else each.max_tokens for each in samplings]
    return sorted(range(len(limits)), key=lambda number: -limits[number])
