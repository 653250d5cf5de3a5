"""Special tokens: texts that stand for one id each, and finding them in a prompt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A text that is one token, and what happens around it.

    `is_text` marks vocabulary of the user's own (a run of spaces, an HTML tag): it is recognised
    everywhere. The others steer the model and are recognised only where the caller says so.
    """

    token_id: int
    text: str
    is_text: bool = False
    strips_left: bool = False
    strips_right: bool = False
    whole_word: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a prompt: ordinary text, or one special token."""

    text: str
    token_id: int | None
    at_start: bool  # nothing of the prompt comes before


class SpecialFinder:
    """Cuts prompts at special tokens; where two fit, the earlier and then the longer one wins."""

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        self._by_text = {token.text: token for token in tokens if token.text}
        longest_first = sorted(self._by_text, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def cut(self, text: str) -> Iterator[Piece]:
        """The pieces of a text in order, none of them empty."""
        done = 0
        for found in self._pattern.finditer(text):
            token = self._by_text[found[0]]
            start, stop = found.span()
            if start < done or (token.whole_word and not _stands_alone(text, start, stop)):
                continue
            before = text[done:start].rstrip() if token.strips_left else text[done:start]
            if before:
                yield Piece(before, None, at_start=done == 0)
            yield Piece(token.text, token.token_id, at_start=start == 0)
            done = _after_spaces(text, stop) if token.strips_right else stop
        if done < len(text):
            yield Piece(text[done:], None, at_start=done == 0)


def _after_spaces(text: str, at: int) -> int:
    """The first position from `at` on that holds no white space."""
    found = re.compile(r"\s*").match(text, at)
    assert found
    return found.end()


def _stands_alone(text: str, start: int, stop: int) -> bool:
    """Whether no word character touches text[start:stop]."""
    return not re.search(r"\w", text[max(0, start - 1) : start] + text[stop : stop + 1])
