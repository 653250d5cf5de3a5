"""Text that arrives in pieces, read by generators that `yield` where they need more of it.

So a parser is written as if the whole text were there. What has been read is dropped, and only what
may be the beginning of a mark is held back: time is linear in the text, however it is cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Wait: TypeAlias = Generator[None, None, T]
Emit: TypeAlias = Callable[[str], None]

SPACE = re.compile(r"\s*")
MAX_NAME = 256  # characters of a function's name or an id: what is longer is no call


class Malformed(Exception):
    """The text is not what the dialect says."""


class Marks:
    """Strings to look for at once; where two fit, the earlier and then the longer one wins."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = sorted(filter(None, texts), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._texts)) or r"(?!)")

    def find(self, text: str, at: int) -> tuple[int, int] | None:
        """Return where the first of the strings stands."""
        found = self._pattern.search(text, at)
        return found.span() if found else None

    def possible_start(self, text: str, at: int) -> int:
        """Return the first position from which the rest of the text begins one of the strings."""
        longest = len(self._texts[0]) - 1 if self._texts else 0
        for start in range(max(at, len(text) - longest), len(text)):
            if any(mark.startswith(text[start:]) for mark in self._texts):
                return start
        return len(text)


@lru_cache(maxsize=256)
def marks_of(*texts: str) -> Marks:
    """Return the strings as marks, compiled once."""
    return Marks(texts)


class Reader:
    """The text of one answer from the place that has been reached."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._is_ended = False
        self._taken: list[str] = []

    def feed(self, text: str) -> None:
        """Add a piece of text."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Say that nothing more comes."""
        self._is_ended = True

    @property
    def is_drained(self) -> bool:
        """True if the text has ended and all of it was read."""
        return self._is_ended and self._at == len(self._text)

    def record(self) -> None:
        """Forget what was taken before; `recorded` begins here."""
        self._taken.clear()

    def recorded(self) -> str:
        """Return what was taken since `record`."""
        return "".join(self._taken)

    def back(self, text: str) -> None:
        """Untake a text that was taken last."""
        self._at -= len(text)
        while text:
            last = self._taken.pop()
            self._taken += [last[: -len(text)]] if len(last) > len(text) else []
            text = text[: -len(last)]

    def until(self, marks: Marks, emit: Emit, *, drops_part: bool = False) -> Wait[str]:
        """Give the text before the first mark to `emit`, and return the mark; "" at the end.

        With `drops_part`, a mark of which the text ends in the middle is not given.
        """
        while True:
            if found := marks.find(self._text, self._at):
                self._give(found[0], emit)
                return self._take(found[1])
            is_given = self._is_ended and not drops_part
            whole = len(self._text)
            self._give(whole if is_given else marks.possible_start(self._text, self._at), emit)
            if self._is_ended:
                self._take(whole)
                return ""
            yield

    def name(self, marks: Marks) -> Wait[tuple[str, str]]:
        """Return a short text and the mark behind it; Malformed where it is long, or has no end."""
        parts: list[str] = []

        def emit(text: str) -> None:
            parts.append(text)
            if sum(map(len, parts)) > MAX_NAME:
                raise Malformed("no name is so long")

        mark = yield from self.until(marks, emit)
        if not mark:
            raise Malformed("a name does not end")
        return "".join(parts).strip(), mark

    def run(self, pattern: re.Pattern[str], emit: Emit | None = None) -> Wait[str]:
        """Return all characters that match a pattern of a class of them; or give them to `emit`."""
        parts: list[str] = []
        give = emit or parts.append
        while True:
            found = pattern.match(self._text, self._at)
            self._give(found.end() if found else self._at, give)
            if self._at < len(self._text) or self._is_ended:
                return "".join(parts)
            yield

    def space(self, emit: Emit | None = None) -> Wait[str]:
        """Return white space, or give it to `emit`."""
        return (yield from self.run(SPACE, emit))

    def peek(self) -> Wait[str]:
        """Return the next character without taking it; Malformed at the end."""
        while self._at == len(self._text):
            if self._is_ended:
                raise Malformed("the text ends")
            yield
        return self._text[self._at]

    def take(self, length: int = 1) -> Wait[str]:
        """Return that many characters; Malformed where there are fewer."""
        while len(self._text) - self._at < length:
            if self._is_ended:
                self._take(len(self._text))
                raise Malformed("the text ends")
            yield
        return self._take(self._at + length)

    def find(self, *options: str) -> Wait[str]:
        """Return which of the options comes next, "" for none of them; takes nothing.

        An option that is "" is none.
        """
        options = tuple(filter(None, options))
        longest = max(map(len, options), default=0)
        while True:
            rest = self._text[self._at : self._at + longest]
            if hits := [option for option in options if rest.startswith(option)]:
                return max(hits, key=len)
            if self._is_ended or not any(option.startswith(rest) for option in options):
                return ""
            yield

    def skip(self, *options: str) -> Wait[str]:
        """Take one of the options where it comes next; return it, or "" for none."""
        found = yield from self.find(*options)
        return self._take(self._at + len(found)) if found else ""

    def skip_last(self, *options: str) -> Wait[str]:
        """Take one of the options, or the part of one with which the text ends; return what is
        whole.
        """
        found = yield from self.skip(*options)
        if not found and (yield from self.ends_within(*options)):
            self._take(len(self._text))
        return found

    def ends_within(self, *options: str) -> Wait[bool]:
        """Return whether the text ends here, or in the middle of one of the options."""
        if (yield from self.find(*options)) or not self._is_ended:
            return False
        rest = self._text[self._at :]
        return any(option.startswith(rest) for option in options)

    def expect(self, *options: str) -> Wait[str]:
        """Take one of the options; Malformed where something else comes."""
        found = yield from self.skip_last(*options)
        if not found:
            raise Malformed(f"expected one of {options}")
        return found

    def _give(self, stop: int, emit: Emit) -> None:
        if stop > self._at:
            emit(self._take(stop))

    def _take(self, stop: int) -> str:
        text, self._at = self._text[self._at : stop], stop
        if text:
            self._taken.append(text)
        return text
