"""Calls as JSON objects, one or a list: {"name": …, "arguments": {…}}."""

from __future__ import annotations

import json
from dataclasses import dataclass

from spaninfer_serving.dialects.answer import Answer
from spaninfer_serving.dialects.json_text import ignore, is_object, read_text, read_value
from spaninfer_serving.dialects.named_calls import NamedCalls
from spaninfer_serving.dialects.reader import Malformed, Wait

NAMES = frozenset({"name", "tool_name"})
ARGUMENTS = frozenset({"arguments", "parameters"})
IDS = frozenset({"id", "tool_call_id"})


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """Reads JSON calls behind an opening mark, and a closing one that models forget at times.

    `opens` are marks in front; with `is_known_only`, for calls without a mark, only the functions
    that the request brings are called: other JSON is an answer.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...] = ()
    is_known_only: bool = False

    def read(self, answer: Answer, _: str) -> Wait[None]:
        """Read what follows an opening mark."""
        reader = answer.reader
        yield from reader.space()
        if (yield from reader.expect("{", "[")) == "[":
            yield from self._read_list(answer)
        else:
            yield from self._read_objects(answer)
        yield from reader.space()
        yield from reader.skip_last(*self.closes)

    def _read_list(self, answer: Answer) -> Wait[None]:
        reader = answer.reader
        mark = ","
        while mark == ",":
            yield from reader.space()
            yield from reader.expect("{")
            yield from self._read_call(answer)
            yield from reader.space()
            mark = yield from reader.expect(",", "]")

    def _read_objects(self, answer: Answer) -> Wait[None]:
        """Read one call, or several in a row."""
        reader = answer.reader
        while True:
            yield from self._read_call(answer)
            yield from reader.space()
            separator = yield from reader.skip("{", ";", ",")
            if not separator:
                return
            if separator != "{":
                yield from reader.space()
                yield from reader.expect("{")

    def _read_call(self, answer: Answer) -> Wait[None]:
        """Read one object behind its brace."""
        reader, call = answer.reader, _Call(self.is_known_only)
        mark = ","
        while mark == ",":
            yield from reader.space()
            key = yield from read_text(reader)
            yield from reader.space()
            yield from reader.expect(":")
            yield from reader.space()
            yield from call.read(answer, key)
            yield from reader.space()
            mark = yield from reader.skip(",", "}")
        if not mark and not call.has_begun:
            raise Malformed("a call does not end")
        call.finish(answer)


@dataclass(frozen=True, slots=True)
class JsonOr:
    """Reads JSON calls where a bracket follows the opening mark, else calls in another format."""

    other: NamedCalls

    @property
    def opens(self) -> tuple[str, ...]:
        """The opening marks."""
        return self.other.opens

    def read(self, answer: Answer, mark: str) -> Wait[None]:
        """Read what follows an opening mark."""
        yield from answer.reader.space()
        is_json = yield from answer.reader.find("{", "[")
        yield from (JsonCalls(self.opens) if is_json else self.other).read(answer, mark)


class _Call:
    """The members of a call as they come; it begins when its name and its arguments are known."""

    def __init__(self, is_known_only: bool) -> None:
        self._is_known_only = is_known_only
        self._name: str | None = None
        self._id: str | None = None
        self._arguments: str | None = None
        self.has_begun = False

    def read(self, answer: Answer, key: str) -> Wait[None]:
        """Read the value of a key."""
        if key in NAMES:
            self._name = yield from read_text(answer.reader)
        elif key in ARGUMENTS:
            yield from self._read_arguments(answer)
        elif key in IDS:
            self._id = (yield from _collected(answer)).strip('"')
        else:
            yield from read_value(answer.reader, ignore)

    def finish(self, answer: Answer) -> None:
        """End the call."""
        if not self.has_begun:
            self._begin(answer)
            answer.argue(self._arguments or "{}")
        answer.finish()

    def _begin(self, answer: Answer) -> None:
        if self._name is None or (self._is_known_only and self._name not in answer.tools):
            raise Malformed("no function of this request is named")
        answer.start(self._name, self._id)
        self.has_begun = True

    def _read_arguments(self, answer: Answer) -> Wait[None]:
        if self.has_begun or self._arguments is not None:
            raise Malformed("there are two sets of arguments")
        is_object_next = (yield from answer.reader.peek()) == "{"
        if is_object_next and self._name is not None:
            self._begin(answer)
            yield from read_value(answer.reader, answer.argue)
        else:
            self._arguments = _object_of((yield from _collected(answer)))


def _collected(answer: Answer) -> Wait[str]:
    parts: list[str] = []
    yield from read_value(answer.reader, parts.append)
    return "".join(parts)


def _object_of(value: str) -> str:
    """Return arguments as a JSON object: null has none, and a string may hold one."""
    if value == "null":
        return "{}"
    if value.startswith('"'):
        value = json.loads(value)
    if not is_object(value):
        raise Malformed("arguments are no object")
    return value
