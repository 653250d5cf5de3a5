"""One answer while it is parsed: its text, and the events that come of it."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from spaninfer_serving.dialects.events import (
    Arguments,
    CallBroken,
    CallEnd,
    CallStart,
    Content,
    Event,
    Reasoning,
)
from spaninfer_serving.dialects.reader import Malformed, Reader, Wait
from spaninfer_serving.ids import new_hex

Schema: TypeAlias = Mapping[str, Any]
Tools: TypeAlias = Mapping[str, Schema]
"""The JSON schemas of functions' parameters, by name."""

NewId: TypeAlias = Callable[[], str]


def openai_id() -> str:
    """Return a new id as OpenAI's look."""
    return f"call_{new_hex(24)}"


def mistral_id() -> str:
    """Return a new id as Mistral's templates demand: nine letters and digits."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


class Answer:
    """Collects the events of one answer, in which spaces at the seams do not count.

    Those around reasoning are dropped, and those of the content in front of a call.
    """

    def __init__(self, tools: Tools, new_id: NewId) -> None:
        self.reader = Reader()
        self.tools = tools
        self._new_id = new_id
        self._events: list[Event] = []
        self._spaces: list[str] = []  # held back, at the end of what was said last
        self._is_at_start = False  # of content or reasoning whose spaces in front are dropped
        self._num_calls = 0
        self._is_cut = False
        self._open: int | None = None  # the call whose arguments are read

    def drain(self) -> list[Event]:
        """Return the events since the last time."""
        events, self._events = self._events, []
        return events

    def say(self, text: str) -> None:
        """Add content."""
        if text := self._without_spaces(text):
            self._events.append(Content(text))

    def think(self, text: str) -> None:
        """Add reasoning."""
        if text := self._without_spaces(text):
            self._events.append(Reasoning(text))

    def begin_text(self) -> None:
        """Drop spaces behind what was said before, and in front of what comes."""
        self._spaces.clear()
        self._is_at_start = True

    def start(self, name: str, call_id: str | None = None) -> None:
        """Begin a call."""
        if not name or any(map(str.isspace, name)):
            raise Malformed("a call names no function")
        self.begin_text()
        self._open = self._num_calls
        self._num_calls += 1
        self._events.append(CallStart(self._open, call_id or self._new_id(), name))

    def argue(self, text: str) -> None:
        """Add to the arguments of the call."""
        assert self._open is not None, "a call has begun"
        if text:
            self._events.append(Arguments(self._open, text))

    def finish(self) -> None:
        """End the call: whatever comes of its closing marks, it stays one."""
        assert self._open is not None, "a call has begun"
        self._events.append(CallEnd(self._open))
        self._open = None
        self.reader.record()

    def attempt(self, read: Wait[None]) -> Wait[None]:
        """Read a call; what proves malformed is content as it was written since `record`."""
        try:
            yield from read
        except Malformed:
            self._give_up()

    def end(self, *, is_cut: bool) -> None:
        """Say that the text has ended; `is_cut`: a call that is not complete stays one."""
        self._is_cut = is_cut
        self.reader.end()

    def close(self) -> None:
        """Add what was held back, when all has been read."""
        if not self._num_calls:
            self._flush()

    def _give_up(self) -> None:
        is_unfinished = self._is_cut and self.reader.is_drained
        if self._open is not None:
            if not is_unfinished:
                self._break_off()
        elif not (is_unfinished and self._num_calls):  # behind a call, it is more of the markup
            self.say(self.reader.recorded())

    def _break_off(self) -> None:
        assert self._open is not None
        self._flush()
        self._events.append(CallBroken(self._open, self.reader.recorded()))
        self._open, self._is_at_start = None, False

    def _without_spaces(self, text: str) -> str:
        if self._is_at_start:
            text = text.lstrip()
            self._is_at_start = not text
        shown = text.rstrip()
        if not shown:
            self._spaces.append(text)
            return ""
        before, self._spaces = "".join(self._spaces), [text[len(shown) :]]
        return before + shown

    def _flush(self) -> None:
        if spaces := "".join(self._spaces):
            self._events.append(Content(spaces))
        self._spaces.clear()
