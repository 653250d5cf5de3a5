"""JSON checked while it streams, and passed on as it was written."""

from __future__ import annotations

import json
import re

from spaninfer_serving.dialects.reader import Emit, Malformed, Reader, Wait

PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
BARE = re.compile(r"[-+.0-9A-Za-z]*")
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
WORDS = frozenset({"true", "false", "null"})
ESCAPES = frozenset('"\\/bfnrt')
HEX = re.compile(r"[0-9a-fA-F]{4}")
CLOSERS = {"{": "}", "[": "]"}


def ignore(_: str) -> None:
    """Drop a text."""


def read_value(reader: Reader, emit: Emit) -> Wait[None]:
    """Pass one JSON value on to `emit`; Malformed where it is none.

    Characters that JSON wants escaped in strings, such as line breaks, are escaped: models forget
    it. All else stays as it is.
    """
    closers: list[str] = []
    while True:
        char = yield from reader.peek()
        if char in CLOSERS:
            emit((yield from reader.take()))
            if (yield from _opened(reader, emit, CLOSERS[char])):
                closers.append(CLOSERS[char])
                continue
        elif char == '"':
            yield from read_string(reader, emit)
        else:
            yield from _read_scalar(reader, emit)
        while closers:
            yield from reader.space(emit)
            mark = yield from reader.expect(",", closers[-1])
            emit(mark)
            if mark == ",":
                yield from reader.space(emit)
                if closers[-1] == "}":
                    yield from _read_key(reader, emit)
                break
            closers.pop()
        else:
            return


def read_string(reader: Reader, emit: Emit) -> Wait[None]:
    """Pass one JSON string on, with its quotes."""
    emit((yield from reader.expect('"')))
    while True:
        yield from reader.run(PLAIN, emit)
        char = yield from reader.take()
        if char == "\\":
            emit("\\" + (yield from read_escape(reader)))
        elif char == '"':
            emit(char)
            return
        else:
            emit(json.dumps(char)[1:-1])


def read_text(reader: Reader) -> Wait[str]:
    """Return what one JSON string says; Malformed where that is no text."""
    parts: list[str] = []
    yield from read_string(reader, parts.append)
    text: str = json.loads("".join(parts))
    try:
        text.encode()
    except UnicodeEncodeError as half:
        raise Malformed("a string holds half a surrogate pair") from half
    return text


def is_object(text: str) -> bool:
    """Return whether a text is a JSON object."""
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def is_value(text: str) -> bool:
    """Return whether a text is a JSON value."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _opened(reader: Reader, emit: Emit, closer: str) -> Wait[bool]:
    """Read what follows an opening bracket; return whether a value comes."""
    yield from reader.space(emit)
    if (yield from reader.peek()) == closer:
        emit((yield from reader.take()))
        return False
    if closer == "}":
        yield from _read_key(reader, emit)
    return True


def _read_key(reader: Reader, emit: Emit) -> Wait[None]:
    yield from read_string(reader, emit)
    yield from reader.space(emit)
    emit((yield from reader.expect(":")))
    yield from reader.space(emit)


def _read_scalar(reader: Reader, emit: Emit) -> Wait[None]:
    text = yield from reader.run(BARE)
    if text not in WORDS and not NUMBER.fullmatch(text):
        raise Malformed(f"{text[:20]!r} is no JSON value")
    emit(text)


def read_escape(reader: Reader) -> Wait[str]:
    """Return what follows a backslash; Malformed where that is no escape of JSON."""
    char = yield from reader.take()
    if char == "u":
        digits = yield from reader.take(4)
        if HEX.fullmatch(digits):
            return char + digits
    elif char in ESCAPES:
        return char
    raise Malformed(f"\\{char} is no escape of JSON")
