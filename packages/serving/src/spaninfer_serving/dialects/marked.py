"""Answers in which marks tell reasoning, content and calls apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from spaninfer_serving.dialects.answer import Answer
from spaninfer_serving.dialects.reader import Wait, marks_of


class CallFormat(Protocol):
    """A way to write calls behind one of several opening marks; "": at the start of the content."""

    @property
    def opens(self) -> tuple[str, ...]:
        """The opening marks."""
        ...

    def read(self, answer: Answer, mark: str) -> Wait[None]:
        """Read what follows the mark; Malformed where it is no call."""
        ...


@dataclass(frozen=True, slots=True)
class Thinking:
    """The marks around reasoning, which stands in front of everything else.

    With `calls_end_it`, a call's opening mark ends reasoning, too; otherwise it is text there.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    calls_end_it: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """The marks around all calls; either may be missing."""

    open: str = ""
    close: str = ""


@dataclass(frozen=True, slots=True)
class Marked:
    """The layout: reasoning, then content, and calls wherever their marks stand.

    `frame` are marks around content that are no part of it.
    """

    formats: tuple[CallFormat, ...] = ()
    section: Section = Section()
    frame: tuple[str, ...] = ()

    def without_calls(self) -> Marked:
        """Return the layout of an answer to a request without tools."""
        return Marked(frame=self.frame)

    @property
    def opens(self) -> tuple[str, ...]:
        """All marks that open calls."""
        section = (self.section.open,) if self.section.open else ()
        return (*self._opens, *section)

    @property
    def _opens(self) -> tuple[str, ...]:
        return tuple(mark for each in self.formats for mark in each.opens if mark)

    def read(self, answer: Answer, thinking: Thinking | None, is_thinking: bool) -> Wait[None]:
        """Read a whole answer; `is_thinking`: the prompt has opened the reasoning."""
        reader = answer.reader
        reader.record()
        if thinking is not None:
            yield from self._read_reasoning(answer, thinking, is_thinking)
        yield from self._read_unmarked(answer)
        marks = marks_of(*self.opens, *self.frame)
        while True:
            reader.record()
            mark = yield from reader.until(marks, answer.say)
            if not mark:
                return
            if mark in self.frame:
                answer.begin_text()
                continue
            reader.back(mark)
            reader.record()
            yield from answer.attempt(self._read_calls(answer))

    def _read_reasoning(self, answer: Answer, thinking: Thinking, is_open: bool) -> Wait[None]:
        reader = answer.reader
        if not is_open:
            spaces = yield from reader.space()
            if not (yield from reader.skip(*thinking.opens)):
                answer.say(spaces)
                return
        answer.begin_text()
        calls = self.opens if thinking.calls_end_it else ()
        mark = yield from reader.until(marks_of(*thinking.closes, *calls), answer.think)
        if mark not in thinking.closes:
            reader.back(mark)
        answer.begin_text()

    def _read_unmarked(self, answer: Answer) -> Wait[None]:
        """Read calls that begin where the content does."""
        reader = answer.reader
        for each in self.formats:
            if "" in each.opens:
                reader.record()
                yield from reader.space()
                if (yield from reader.find("{", "[")):
                    yield from answer.attempt(each.read(answer, ""))
                else:
                    answer.say(reader.recorded())

    def _read_calls(self, answer: Answer) -> Wait[None]:
        """Read calls up to what is none."""
        reader = answer.reader
        if (yield from reader.skip(self.section.open)):
            yield from reader.space()
        mark = yield from reader.expect(*self._opens)
        while mark in self._opens:
            yield from self._format_of(mark).read(answer, mark)
            reader.record()
            yield from reader.space()
            mark = yield from reader.skip_last(*self._opens, self.section.close)
        # What a limit leaves of the next mark is no text, here where calls are.
        yield from reader.space()
        reader.back((yield from reader.skip_last(*self.opens)))

    def _format_of(self, mark: str) -> CallFormat:
        return next(each for each in self.formats if mark in each.opens)
