"""gpt-oss: answers as messages with a channel, and with a recipient where they are calls."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spaninfer_serving.dialects.answer import Answer
from spaninfer_serving.dialects.marked import Thinking
from spaninfer_serving.dialects.named_calls import read_arguments
from spaninfer_serving.dialects.reader import Emit, Wait, marks_of

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CONSTRAIN = "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")


@dataclass(frozen=True, slots=True)
class Harmony:
    """The layout: <|channel|>NAME<|message|>TEXT<|end|>, repeated behind <|start|>assistant."""

    marks: tuple[str, ...] = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)
    has_calls: bool = True

    def without_calls(self) -> Harmony:
        """Return the layout of an answer to a request without tools."""
        return Harmony(has_calls=False)

    def read(self, answer: Answer, _: Thinking | None, is_thinking: bool) -> Wait[None]:
        """Read a whole answer; `is_thinking`: the prompt has opened the channel of reasoning."""
        reader = answer.reader
        if is_thinking:
            yield from self._read_text(answer, answer.think)
        while not reader.is_drained:
            reader.record()
            yield from answer.attempt(self._read_message(answer))
            yield from reader.space()

    def _read_message(self, answer: Answer) -> Wait[None]:
        reader = answer.reader
        if not (yield from reader.find(START, CHANNEL, " to=", *ENDS)):
            answer.begin_text()
            yield from self._read_text(answer, answer.say)  # not as the format wants it
            return
        if (yield from reader.skip(*ENDS)):
            return
        header, _ = yield from reader.name(marks_of(MESSAGE))
        _, _, channel = header.partition(CHANNEL)
        recipient = RECIPIENT.search(header)
        if recipient and self.has_calls:
            yield from read_arguments(answer, recipient[1], None, "<|call|>")
            yield from reader.space()
            mark = yield from reader.skip_last(*ENDS, START, CHANNEL)
            if mark in (START, CHANNEL):
                reader.back(mark)
            return
        answer.begin_text()
        emit = answer.think if channel.strip().startswith("analysis") else answer.say
        yield from self._read_text(answer, emit)

    def _read_text(self, answer: Answer, emit: Emit) -> Wait[None]:
        """Read a message up to its end, or the next one's beginning."""
        mark = yield from answer.reader.until(marks_of(*ENDS, START, CHANNEL), emit)
        if mark in (START, CHANNEL):
            answer.reader.back(mark)
