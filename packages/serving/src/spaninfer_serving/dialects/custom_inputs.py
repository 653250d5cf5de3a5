"""Inputs of custom tools, which models write as the only argument of a function."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from spaninfer_serving.dialects.events import Arguments, CallBroken, CallEnd, CallStart, Event
from spaninfer_serving.dialects.json_text import PLAIN, read_escape
from spaninfer_serving.dialects.reader import Emit, Malformed, Reader, Wait

INPUT = "input"
"""The name of the argument."""


@dataclass(frozen=True, slots=True)
class TextGrammar:
    """The grammar of an input."""

    syntax: Literal["lark", "regex"]
    definition: str


CustomInputs: TypeAlias = Mapping[str, TextGrammar | None]
"""The custom tools of a request by name, with the grammars of inputs that are not any text."""


def input_schema(grammar: TextGrammar | None) -> dict[str, Any]:
    """Return the schema of the function's arguments."""
    text = {"type": "string"}
    if grammar is not None and grammar.syntax == "regex":
        text["pattern"] = f"^(?:{grammar.definition})$"
    return {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }


class InputReader:
    """Replaces the arguments of calls of custom tools by the input in them, piece by piece."""

    def __init__(self, custom: CustomInputs) -> None:
        self._custom = custom
        self._open: dict[int, _Input] = {}  # calls of custom tools that are being read

    def read(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the events; of arguments that are no such object, what they are."""
        for event in events:
            match event:
                case CallStart(index, _, name) if name in self._custom:
                    self._open[index] = _Input()
                    yield replace(event, is_custom=True)
                case Arguments(index, text) if index in self._open:
                    if found := self._open[index].read(text):
                        yield Arguments(index, found, is_custom=True)
                case CallEnd(index) | CallBroken(index=index):
                    self._open.pop(index, None)
                    yield event
                case _:
                    yield event


class _Input:
    """One input, read while its arguments come."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._pieces: list[str] = []
        self._unread: list[str] = []  # arguments of which nothing was returned yet
        self._work = _read_input(self._reader, self._pieces.append)
        self._is_malformed = False

    def read(self, text: str) -> str:
        """Return the input that a piece of the arguments brings."""
        if self._is_malformed:
            return text
        self._reader.feed(text)
        self._unread.append(text)
        try:
            next(self._work, None)
        except Malformed:  # only where no grammar held the model to the form
            self._is_malformed = True
            return "".join(self._unread)
        found = "".join(self._pieces)
        self._pieces.clear()
        if found:
            self._unread.clear()
        return found


def _read_input(reader: Reader, emit: Emit) -> Wait[None]:
    for mark in ("{", f'"{INPUT}"', ":", '"'):
        yield from reader.space()
        yield from reader.expect(mark)
    while True:
        yield from reader.run(PLAIN, emit)
        char = yield from reader.take()
        if char == '"':
            return
        emit((yield from _unescaped(reader)) if char == "\\" else char)


def _unescaped(reader: Reader) -> Wait[str]:
    """Return the character of an escape; both halves of a pair are one."""
    escape = yield from read_escape(reader)
    if escape[:2].lower() == "ud" and (yield from reader.skip("\\")):
        escape += "\\" + (yield from read_escape(reader))
    text: str = json.loads(f'"\\{escape}"')
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
