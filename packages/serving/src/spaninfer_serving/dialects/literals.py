"""Values as programming languages write them, passed on as JSON while they stream; never run."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass

from spaninfer_serving.dialects.reader import Emit, Malformed, Reader, Wait, marks_of

NAME = re.compile(r"[\w.\-]*")
SCALAR = re.compile(r"[-+.\w]*")
WORDS = {"True": "true", "False": "false", "None": "null"}
WORDS |= {word: word for word in ("true", "false", "null")}
SIMPLE_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0",
    "\\": "\\", "'": "'", '"': '"', "\n": "",
}  # fmt: skip
CODES = {"x": 2, "u": 4, "U": 8}  # hexadecimal digits behind these letters
MAX_DEPTH = 64
MAX_SCALAR = 400


@dataclass(frozen=True, slots=True)
class Literals:
    """A notation of values: `quotes` around strings, which hold escapes or are raw.

    Keys of objects are values, or with `has_bare_keys` names without quotes.
    """

    quotes: tuple[str, ...] = ('"', "'")
    has_escapes: bool = True
    has_bare_keys: bool = False

    def read(self, reader: Reader, emit: Emit, depth: int = 0) -> Wait[None]:
        """Pass one value on as JSON; Malformed where it is none, or nests too deep."""
        if depth > MAX_DEPTH:
            raise Malformed(f"values nest deeper than {MAX_DEPTH}")
        if quote := (yield from reader.skip(*self.quotes)):
            yield from self._read_string(reader, emit, quote)
            return
        match (yield from reader.peek()):
            case "[":
                yield from self._read_list(reader, emit, depth, "]")
            case "(":
                yield from self._read_list(reader, emit, depth, ")")
            case "{":
                yield from self._read_object(reader, emit, depth)
            case _:
                emit(_scalar((yield from reader.run(SCALAR))))

    def _read_list(self, reader: Reader, emit: Emit, depth: int, close: str) -> Wait[None]:
        yield from reader.take()
        emit("[")
        comma = ""
        yield from reader.space()
        while not (yield from reader.skip(close)):
            emit(comma)
            yield from self.read(reader, emit, depth + 1)
            comma = ", "
            yield from read_comma(reader, close)
        emit("]")

    def _read_object(self, reader: Reader, emit: Emit, depth: int) -> Wait[None]:
        yield from reader.take()
        emit("{")
        comma = ""
        yield from reader.space()
        while not (yield from reader.skip("}")):
            emit(comma)
            yield from self._read_key(reader, emit)
            yield from reader.space()
            yield from reader.expect(":")
            yield from reader.space()
            emit(": ")
            yield from self.read(reader, emit, depth + 1)
            comma = ", "
            yield from read_comma(reader, "}")
        emit("}")

    def _read_key(self, reader: Reader, emit: Emit) -> Wait[None]:
        if quote := (yield from reader.skip(*self.quotes)):
            yield from self._read_string(reader, emit, quote)
        elif self.has_bare_keys:
            emit(json.dumps((yield from read_name(reader)), ensure_ascii=False))
        else:
            emit(json.dumps(_scalar((yield from reader.run(SCALAR)))))

    def _read_string(self, reader: Reader, emit: Emit, quote: str) -> Wait[None]:
        """Read a string behind its opening quote."""
        emit('"')
        marks = marks_of(quote, "\\") if self.has_escapes else marks_of(quote)
        while True:
            mark = yield from reader.until(marks, lambda text: emit(escaped(text)), drops_part=True)
            if not mark:
                raise Malformed("a string does not end")
            if mark == quote:
                break
            emit((yield from _read_escape(reader)))
        emit('"')


def read_comma(reader: Reader, close: str) -> Wait[None]:
    """Read what is between two items, or in front of the end, which is not taken."""
    yield from reader.space()
    if not (yield from reader.find(close)):
        yield from reader.expect(",")
        yield from reader.space()


def read_name(reader: Reader) -> Wait[str]:
    """Return an identifier; Malformed where there is none."""
    name = yield from reader.run(NAME)
    if not name or len(name) > MAX_SCALAR:
        raise Malformed("expected a name")
    return name


def escaped(text: str) -> str:
    """Return a text as it stands inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _scalar(text: str) -> str:
    """Return a word or number as JSON."""
    if text in WORDS:
        return WORDS[text]
    try:
        number = ast.literal_eval(text[:MAX_SCALAR])
        if isinstance(number, int | float) and len(text) <= MAX_SCALAR:
            return json.dumps(number, allow_nan=False)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        pass
    raise Malformed(f"{text[:20]!r} is no value")


def _read_escape(reader: Reader) -> Wait[str]:
    """Return what follows a backslash as it stands inside a JSON string."""
    char = yield from reader.take()
    if char not in CODES:
        return escaped(SIMPLE_ESCAPES.get(char, "\\" + char))
    digits = yield from reader.take(CODES[char])
    try:
        return json.dumps(chr(int(digits, 16)))[1:-1]
    except (ValueError, OverflowError) as wrong:
        raise Malformed(f"\\{char}{digits} is no character") from wrong
