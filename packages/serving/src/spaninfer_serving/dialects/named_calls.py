"""Calls as a name between marks, and a JSON object behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spaninfer_serving.dialects.answer import Answer
from spaninfer_serving.dialects.json_text import read_value
from spaninfer_serving.dialects.reader import Wait, marks_of

Header = tuple[str, str | None]  # a function's name, and an id where the dialect has one


def plain(header: str) -> Header:
    """Return a header that is the name itself."""
    return header, None


def kimi(header: str) -> Header:
    """Return name and id of `functions.NAME:INDEX`, which is the id as well."""
    name = header.removeprefix("functions.")
    return name.rpartition(":")[0] or name, header


@dataclass(frozen=True, slots=True)
class NamedCalls:
    """Reads a name up to a mark, and arguments up to a closing mark.

    `id_mark` stands between a name and an id. With `fence`, the name may follow the mark instead
    of preceding it, up to the fence; what is in front is a word for the kind of call.
    """

    opens: tuple[str, ...]
    sep: str
    close: str = ""
    id_mark: str = ""
    fence: str = ""
    split: Callable[[str], Header] = plain

    def read(self, answer: Answer, _: str) -> Wait[None]:
        """Read what follows an opening mark."""
        name, call_id = yield from self._read_header(answer)
        yield from read_arguments(answer, name, call_id, self.close)
        yield from answer.reader.space()
        if self.fence and (yield from answer.reader.skip_last("```")):
            yield from answer.reader.space()
        yield from answer.reader.skip_last(self.close)

    def _read_header(self, answer: Answer) -> Wait[Header]:
        reader = answer.reader
        text, mark = yield from reader.name(marks_of(self.sep, self.id_mark))
        if self.id_mark and mark == self.id_mark:
            call_id, _ = yield from reader.name(marks_of(self.sep))
            return text, call_id
        if self.fence:
            yield from reader.space()
            if (yield from reader.peek()) != "{":
                text, _ = yield from reader.name(marks_of(self.fence))
        return self.split(text)


def read_arguments(answer: Answer, name: str, call_id: str | None, close: str) -> Wait[None]:
    """Read a JSON object; nothing at all is one without members."""
    reader = answer.reader
    yield from reader.space()
    mark = yield from reader.expect("{", close)
    reader.back(mark)
    answer.start(name, call_id)
    if mark == "{":
        yield from read_value(reader, answer.argue)
    else:
        answer.argue("{}")
    answer.finish()
