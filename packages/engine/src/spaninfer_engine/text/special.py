"""Special tokens: texts that stand for one id each, and finding them in a prompt."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from spaninfer_engine.text.provenance import Ranges


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
        self._words = _pattern(token for token in self._by_text.values() if token.is_text)
        self._controls = _pattern(token for token in self._by_text.values() if not token.is_text)

    def cut(self, text: str, controls_in: Ranges) -> Iterator[Piece]:
        """The pieces of a text in order, none of them empty.

        Control tokens are recognised where they lie wholly in one of the ranges `controls_in`.
        """
        done = 0
        for start, stop in self._found(text, controls_in):
            token = self._by_text[text[start:stop]]
            if start < done or (token.whole_word and not _stands_alone(text, start, stop)):
                continue
            before = text[done:start].rstrip() if token.strips_left else text[done:start]
            if before:
                yield Piece(before, None, at_start=done == 0)
            yield Piece(token.text, token.token_id, at_start=start == 0)
            done = _after_spaces(text, stop) if token.strips_right else stop
        if done < len(text):
            yield Piece(text[done:], None, at_start=done == 0)

    def _found(self, text: str, controls_in: Ranges) -> Iterator[tuple[int, int]]:
        """Return the positions of tokens, without those that overlap an earlier one."""
        searches = [
            _Search(self._words, text, ((0, len(text)),)),
            _Search(self._controls, text, controls_in),
        ]
        at = 0
        while hits := [hit for search in searches if (hit := search.from_(at))]:
            start, stop = min(hits, key=lambda hit: (hit[0], -hit[1]))
            yield start, stop
            at = stop


class _Search:
    """Looks for a pattern within ranges of a text, from left to right."""

    def __init__(self, pattern: re.Pattern[str] | None, text: str, ranges: Ranges) -> None:
        self._pattern = pattern
        self._text = text
        self._left = list(reversed(ranges)) if pattern else []
        self._hit: tuple[int, int] | None = None

    def from_(self, at: int) -> tuple[int, int] | None:
        """The first hit that begins there or later."""
        if self._hit and self._hit[0] >= at:
            return self._hit
        self._hit = None
        while self._pattern and self._left and self._hit is None:
            start, stop = self._left[-1]
            if found := self._pattern.search(self._text, max(at, start), stop):
                self._hit = found.span()
            else:
                self._left.pop()
        return self._hit


def _pattern(tokens: Iterable[SpecialToken]) -> re.Pattern[str] | None:
    texts = [token.text for token in tokens]
    return re.compile(_longest_of(texts)) if texts else None


def _longest_of(texts: Collection[str]) -> str:
    """Return a pattern that matches the longest of some texts, as a tree of their beginnings.

    So a character is looked at once or twice. One text after the other, a prompt of a million "<"
    held the interpreter, and with it the step loop, for 4 s where 250 tokens begin with one.
    """
    first, last = min(texts), max(texts)
    pairs = enumerate(zip(first, last, strict=False))
    shared = first[: next((at for at, (a, b) in pairs if a != b), len(first))]
    rests: dict[str, list[str]] = {}
    for text in texts:
        if len(text) > len(shared):
            rests.setdefault(text[len(shared)], []).append(text[len(shared) :])
    if not rests:
        return re.escape(shared)
    branches = "|".join(map(_longest_of, rests.values()))
    return f"{re.escape(shared)}(?:{branches}){'?' if shared in texts else ''}"


def _after_spaces(text: str, at: int) -> int:
    """The first position from `at` on that holds no white space."""
    found = re.compile(r"\s*").match(text, at)
    assert found
    return found.end()


def _stands_alone(text: str, start: int, stop: int) -> bool:
    """Return True if no word character touches text[start:stop]."""
    return not re.search(r"\w", text[max(0, start - 1) : start] + text[stop : stop + 1])
