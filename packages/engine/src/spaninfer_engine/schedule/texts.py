"""Texts to embed, cut into steps. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def steps_of(lengths: Sequence[int], *, step_tokens: int, max_texts: int) -> list[list[int]]:
    """Return the numbers of the texts of each step, the longest first, equal ones in their order.

    A step has up to `step_tokens` tokens and `max_texts` texts; a longer text has one of its own.
    Texts are never cut: every token sees all others of its text.

    >>> steps_of([3, 9, 2, 4], step_tokens=8, max_texts=2)
    [[1], [3, 0], [2]]
    """
    steps: list[list[int]] = []
    left = 0
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if not steps or lengths[number] > left or len(steps[-1]) == max_texts:
            steps.append([])
            left = step_tokens
        steps[-1].append(number)
        left -= lengths[number]
    return steps
