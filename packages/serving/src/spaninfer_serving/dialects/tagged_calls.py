"""Calls as tags around every argument, whose types the function's schema knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spaninfer_serving.dialects.answer import Answer, Schema
from spaninfer_serving.dialects.json_text import is_value
from spaninfer_serving.dialects.literals import escaped
from spaninfer_serving.dialects.reader import Emit, Malformed, Wait, marks_of

PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """Reads a name, then arguments of a key and a value each, then a closing mark.

    `name_end` is behind a function's name; where it is "", the name ends where the first argument
    or the call's end begins. `is_string` and `is_json` are attributes behind a key that say how its
    value is written; where there are none, the schema says it.
    """

    opens: tuple[str, ...]
    name_end: str
    key: str
    key_end: str
    value: str
    value_end: str
    close: str
    is_string: str = ""
    is_json: str = ""

    def read(self, answer: Answer, _: str) -> Wait[None]:
        """Read what follows an opening mark."""
        reader = answer.reader
        name = yield from self._read_name(answer)
        yield from reader.space()
        mark = yield from reader.expect(self.key, self.close)
        answer.start(name)
        schema = answer.tools.get(name, {})
        before = "{"
        while mark == self.key:
            answer.argue(before)
            yield from self._read_argument(answer, schema)
            before = ", "
            yield from reader.space()
            mark = yield from reader.expect(self.key, self.close)
        answer.argue("{}" if before == "{" else "}")
        answer.finish()

    def _read_name(self, answer: Answer) -> Wait[str]:
        if self.name_end:
            name, _ = yield from answer.reader.name(marks_of(self.name_end))
            return name
        name, mark = yield from answer.reader.name(marks_of(self.key, self.close))
        answer.reader.back(mark)
        return name

    def _read_argument(self, answer: Answer, schema: Schema) -> Wait[None]:
        ends = marks_of(self.key_end, self.is_string, self.is_json)
        key, end = yield from answer.reader.name(ends)
        if self.value:
            yield from answer.reader.space()
            yield from answer.reader.expect(self.value)
        answer.argue(json.dumps(key, ensure_ascii=False) + ": ")
        kinds = kinds_of(properties_of(schema).get(key), schema)
        if end == self.is_string or (end == self.key_end and kinds <= {"string"}):
            yield from self._read_text(answer)
        else:
            parts: list[str] = []
            yield from self._read_value(answer, parts.append)
            answer.argue(as_json("".join(parts), kinds))

    def _read_text(self, answer: Answer) -> Wait[None]:
        """Read a string, and pass it on as it comes."""
        answer.argue('"')
        yield from self._read_value(answer, lambda text: answer.argue(escaped(text)))
        answer.argue('"')

    def _read_value(self, answer: Answer, emit: Emit) -> Wait[None]:
        """Read a value without one line break at either side.

        Its closing mark is followed by another argument, or the call's end, or a limit leaves only
        a part of these: elsewhere it is text.
        """
        reader = answer.reader
        yield from reader.skip("\n")
        while True:
            ends = marks_of("\n" + self.value_end, self.value_end)
            mark = yield from reader.until(ends, emit, drops_part=True)
            if not mark:
                raise Malformed("an argument does not end")
            space = yield from reader.space()
            follows = yield from reader.find(self.key, self.close)
            if follows or (yield from reader.ends_within(self.key, self.close)):
                return
            emit(mark + space)


def kinds_of(schema: object, root: Schema) -> frozenset[str]:
    """Return the JSON types that a schema allows; none of them where it does not say.

    `root` is the schema that references lead into; each is followed once.
    """
    kinds: set[str] = set()
    seen: set[str] = set()
    pending = [schema]
    while pending:
        each = pending.pop()
        if not isinstance(each, dict):
            continue
        kinds |= {kind for kind in as_list(each.get("type")) if isinstance(kind, str)}
        values = as_list(each.get("enum"))
        if values and all(isinstance(value, str) for value in values):
            kinds.add("string")
        for inner in ("anyOf", "oneOf", "allOf"):
            pending += as_list(each.get(inner))
        reference = each.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            pending.append(referenced(reference, root))
    return frozenset(kinds)


def properties_of(schema: Schema) -> Mapping[str, object]:
    """Return the schemas of an object's properties; none where the schema is no sound one."""
    properties = object_of(schema).get("properties")
    return properties if isinstance(properties, Mapping) else {}


def object_of(schema: Schema) -> Schema:
    """Return the part of a schema that lists properties: where a reference at its top leads, as
    pydantic writes it for models that hold themselves.
    """
    found, seen = schema, set[str]()
    while "properties" not in found:
        reference = found.get("$ref")
        if not isinstance(reference, str) or reference in seen:
            break
        seen.add(reference)
        target = referenced(reference, schema)
        if not isinstance(target, Mapping):
            break
        found = target
    return found


def as_list(value: object) -> list[object]:
    """Return a list as it is, and anything else as a list of it; nothing of None."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def referenced(reference: str, root: Schema) -> object:
    """Return the part of a schema that a reference such as #/$defs/name names."""
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def as_json(text: str, kinds: frozenset[str]) -> str:
    """Return a value as JSON: itself where it is JSON or a word of Python's, else a string."""
    plain = text.strip()
    plain = PYTHON_WORDS.get(plain, plain)
    may_be_json = plain == "null" or kinds != {"string", "null"}
    return plain if may_be_json and is_value(plain) else json.dumps(text, ensure_ascii=False)
