"""Functionary 3.2: >>>RECIPIENT, a line break, and content for all or a function's arguments."""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_serving.dialects.answer import Answer
from spaninfer_serving.dialects.marked import Thinking
from spaninfer_serving.dialects.named_calls import read_arguments
from spaninfer_serving.dialects.reader import Malformed, Wait, marks_of

MARK, ALL = ">>>", "all"


@dataclass(frozen=True, slots=True)
class Recipients:
    """The layout; the prompt ends with the first mark, so the answer begins with a recipient.

    The mark is also Python's prompt, so only a function of this request is a recipient.
    """

    def without_calls(self) -> Recipients:
        """Return the layout of an answer to a request without tools: its only recipient is all."""
        return self

    def read(self, answer: Answer, _: Thinking | None, __: bool) -> Wait[None]:
        """Read a whole answer."""
        reader = answer.reader
        reader.record()
        yield from reader.skip(MARK)
        yield from answer.attempt(self._read_part(answer))
        while True:
            reader.record()
            if not (yield from reader.until(marks_of(MARK), answer.say)):
                return
            reader.back(MARK)
            reader.record()
            yield from reader.take(len(MARK))
            yield from answer.attempt(self._read_part(answer))

    def _read_part(self, answer: Answer) -> Wait[None]:
        name, _ = yield from answer.reader.name(marks_of("\n"))
        if name == ALL:
            answer.begin_text()
        elif name in answer.tools:
            yield from read_arguments(answer, name, None, MARK)
            yield from answer.reader.space()
            answer.reader.back((yield from answer.reader.skip_last(MARK)))
        else:
            raise Malformed("there is no recipient of this name")
