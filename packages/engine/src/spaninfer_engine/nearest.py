"""The known name that a misspelt one is nearest to."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_MAX_CHARS = 64  # comparing takes time in proportion to the length, and names are short


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question to append to a message, empty where no name is near.

    >>> did_you_mean("temprature", ["temperature", "top_p"])
    "; did you mean 'temperature'?"
    """
    near = get_close_matches(name[:_MAX_CHARS], list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
