"""Grammars, in llguidance's form of Lark's syntax, of answers that have to make calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spaninfer_serving.dialects.answer import Schema, Tools
from spaninfer_serving.dialects.marked import Thinking
from spaninfer_serving.dialects.tagged_calls import kinds_of, properties_of
from spaninfer_serving.dialects.writing import Writing

PLACES = re.compile(r"\$(NAME|JSON|ARGUMENTS|KEY|VALUE|TEXT)")
ANY_TEXT = "/(?s:.*)/"
SHARED = ("$defs", "definitions")  # of a schema, where those of its properties refer to

# Keys of a schema of arguments beside which `properties` are all that there is.
LISTING = frozenset({"type", "properties", "required", "title", "description", "$schema", *SHARED})


def calls_grammar(
    writing: Writing,
    tools: Tools,
    control_ids: Mapping[str, int],
    *,
    is_single: bool = False,
    thinking: Thinking | None = None,
    is_thinking: bool = False,
) -> str:
    """Return the grammar of an answer that calls at least one of the functions, and says no more.

    `control_ids` are control tokens by their text: a grammar names them by id. An answer may think
    first, and has to end its reasoning where the prompt has opened it.
    """
    made = _Grammar(control_ids)
    calls = [made.call(writing, name, schema) for name, schema in tools.items()]
    made.rules.append(f"call: {' | '.join(calls)}")
    more = "" if is_single or writing.is_single else f"({made.text(writing.separator)} call)*"
    thought = made.thought(thinking, is_open=is_thinking)
    start = [thought, made.text(writing.begin), "call", more, made.text(writing.end)]
    return "\n".join([f"start: {' '.join(filter(None, start))}", *made.rules]) + "\n"


class _Grammar:
    """Rules as they are made; each has a name of its own."""

    def __init__(self, control_ids: Mapping[str, int]) -> None:
        self._ids = control_ids
        texts = sorted(control_ids, key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self.rules: list[str] = []

    def text(self, text: str) -> str:
        """Return an expression for a text as it stands."""
        parts: list[str] = []
        at = 0
        for found in self._controls.finditer(text):
            parts += [_quoted(text[at : found.start()]), f"<[{self._ids[found[0]]}]>"]
            at = found.end()
        parts.append(_quoted(text[at:]))
        return " ".join(part for part in parts if part != '""')

    def call(self, writing: Writing, name: str, schema: Schema) -> str:
        """Return an expression for a call of a function."""
        parts = []
        for text, place in _cut(writing.call):
            parts.append(self.text(text))
            match place:
                case "NAME":
                    parts.append(self.text(name))
                case "JSON":
                    parts.append(self._json(_of_parameters(schema)))
                case "ARGUMENTS":
                    parts.append(self._arguments(writing, schema))
        return self._rule(" ".join(filter(None, parts)))

    def thought(self, thinking: Thinking | None, *, is_open: bool) -> str:
        """Return an expression for reasoning in front of calls; "" where there is none."""
        if thinking is None:
            return ""
        end = self._rule(" | ".join(self._until(mark) for mark in thinking.closes))
        if is_open:
            return f"{end} /\\s{{0,4}}/"
        opens = " | ".join(self.text(mark) for mark in thinking.opens)
        return f"(({opens}) {end} /\\s{{0,4}}/)?"

    def _arguments(self, writing: Writing, schema: Schema) -> str:
        """Return an expression for arguments: those that are required first."""
        properties = properties_of(schema)
        required_too = schema.get("required")
        named = required_too if isinstance(required_too, list) else ()
        shared = {key: schema[key] for key in SHARED if key in schema}
        made = {
            key: self._argument(writing, key, value, shared) for key, value in properties.items()
        }
        required = [made[key] for key in made if key in named]
        optional = [made[key] for key in made if key not in named]
        return _in_a_row(required, optional, self.text(writing.comma))

    def _argument(self, writing: Writing, key: str, schema: Any, shared: Schema) -> str:
        is_text = bool(writing.text_argument) and kinds_of(schema, shared) <= {"string"}
        shape = writing.text_argument if is_text else writing.argument
        *head, (tail, _) = _cut(shape)
        parts = []
        for text, place in head:
            parts.append(self.text(text))
            match place:
                case "KEY":
                    parts.append(self.text(key))
                case "VALUE":
                    whole = {**schema, **shared} if isinstance(schema, dict) else schema
                    parts += [self._json(whole), self.text(tail)]
                case "TEXT":
                    parts.append(self._until(tail))
        return self._rule(" ".join(filter(None, parts)))

    def _until(self, mark: str) -> str:
        """Return an expression for any text up to a mark, and the mark."""
        if found := self._controls.match(mark):
            rest = self.text(mark[found.end() :])
            return f"{ANY_TEXT} <[{self._ids[found[0]]}]> {rest}"
        name = f"rule_{len(self.rules)}"
        self.rules.append(f"{name}[suffix={_quoted(mark)}]: {ANY_TEXT}")
        return name

    def _json(self, schema: Any) -> str:
        return self._rule(f"%json {json.dumps(schema)}")

    def _rule(self, expression: str) -> str:
        name = f"rule_{len(self.rules)}"
        self.rules.append(f"{name}: {expression}")
        return name


def _of_parameters(schema: Schema) -> Schema:
    """Return the schema of a function's arguments, which has no others than its parameters.

    A schema that says nothing of further properties allows any: a function that lists what it takes
    does not mean that, and small models write until `max_tokens`. One without a list, or whose
    properties come from elsewhere as well, is taken at its word.
    """
    schema = {"type": "object", **schema}
    if "properties" not in schema or not schema.keys() <= LISTING:
        return schema
    return {**schema, "additionalProperties": False}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # escapes of letters are none in a suffix


def _cut(shape: str) -> Iterator[tuple[str, str]]:
    """Yield texts and the places behind them; the last text has none."""
    *pairs, last = PLACES.split(shape)
    yield from zip(pairs[::2], pairs[1::2], strict=True)
    yield last, ""


def _in_a_row(required: Sequence[str], optional: Sequence[str], comma: str) -> str:
    """Return an expression for all of the required and some of the optional, in order."""
    behind = [f"({comma} {each})?" for each in optional]
    if required:
        return " ".join([f" {comma} ".join(required), *behind])
    firsts = [" ".join([each, *behind[at + 1 :]]) for at, each in enumerate(optional)]
    return f"({' | '.join(firsts)})?" if firsts else ""
