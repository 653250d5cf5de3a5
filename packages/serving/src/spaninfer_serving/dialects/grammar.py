"""Grammars, in llguidance's form of Lark's syntax, of answers whose calls are constrained."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spaninfer_serving.dialects.answer import Schema, Tools
from spaninfer_serving.dialects.custom_inputs import CustomInputs, TextGrammar
from spaninfer_serving.dialects.lark_end import ending_at
from spaninfer_serving.dialects.marked import Marked
from spaninfer_serving.dialects.parser import AnswerFormat
from spaninfer_serving.dialects.tagged_calls import kinds_of, object_of, properties_of
from spaninfer_serving.dialects.writing import Writing

PLACES = re.compile(r"\$(NAME|JSON|ARGUMENTS|KEY|VALUE|TEXT)")
ANY_TEXT = "/(?s:.*)/"
SHARED = ("$defs", "definitions")  # of a schema, where those of its properties refer to

# Keys of a schema of arguments beside which `properties` are all that there is.
LISTING = frozenset({"type", "properties", "required", "title", "description", "$schema", *SHARED})


def calls_grammar(
    writing: Writing,
    form: AnswerFormat,
    control_ids: Mapping[str, int],
    *,
    is_required: bool = True,
) -> str:
    """Return the grammar of an answer that calls at least one of the functions, and says no more.

    If a call is not required, the answer may say anything, and call one of the functions where it
    calls any. `control_ids` are control tokens by their text: a grammar names them by id. An answer
    may think first, and has to end its reasoning where the prompt has opened it.
    """
    made = _Grammar(control_ids, form.custom)
    thought = made.thought(form)
    rest = made.calls(writing, form) if is_required else made.answer(writing, form)
    return "\n".join([f"start: {thought} {rest}".rstrip(), *made.rules]) + "\n"


class _Grammar:
    """Rules as they are made; each has a name of its own."""

    def __init__(self, control_ids: Mapping[str, int], custom: CustomInputs) -> None:
        self._ids, self._custom = control_ids, custom
        texts = sorted(control_ids, key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self.rules: list[str] = []
        self._never_first: Sequence[str] = ()  # marks that no text begins with

    def text(self, text: str) -> str:
        """Return an expression for a text as it stands."""
        parts: list[str] = []
        at = 0
        for found in self._controls.finditer(text):
            parts += [_quoted(text[at : found.start()]), f"<[{self._ids[found[0]]}]>"]
            at = found.end()
        parts.append(_quoted(text[at:]))
        return " ".join(part for part in parts if part != '""')

    def calls(self, writing: Writing, form: AnswerFormat) -> str:
        """Return an expression for one call or more, and nothing else."""
        call = self._call(writing, form.tools)
        is_single = form.is_single or writing.is_single
        more = "" if is_single else f"({self.text(writing.separator)} {call})*"
        parts = [self.text(writing.begin), call, more, self.text(writing.end)]
        return " ".join(filter(None, parts))

    def answer(self, writing: Writing, form: AnswerFormat) -> str:
        """Return an expression for text and calls: what begins like a call is one."""
        if form.thinking is not None and not form.is_thinking:
            self._never_first = form.thinking.opens  # a longer text would win over the mark
        if writing.messages:
            head = f"({' | '.join(map(self.text, writing.messages))})"
            said = f"{head} {self._until(writing.next_message)}"
            last = f"{head} {self._said([writing.next_message])}"
            return f"({said})* ({self.calls(writing, form)} | {last})"
        assert isinstance(form.layout, Marked), "others consist of messages"
        marks, whole = form.layout.opens, writing.begin + writing.call
        mark = max((each for each in marks if whole.startswith(each)), key=len, default="")
        if not mark:  # a call is what begins with a bracket
            no_call = self._said(marks, begin=r"\s*[^\s{\[]")
            return f"({self.calls(writing, form)} | {no_call})"
        frame = form.layout.frame
        others = [each for each in marks if each != mark]
        said = f"{self._said(others, frame) if frame else ''} {self._until(mark, others)}".strip()
        most = "?" if form.is_single or writing.is_single else "*"
        call = self._behind(mark, writing, form)
        return f"({said} {call}){most} {self._said(marks, frame)}"

    def _behind(self, mark: str, writing: Writing, form: AnswerFormat) -> str:
        """Return an expression for a call, or all between `begin` and `end`, without a mark."""
        if writing.begin:
            return self.calls(replace(writing, begin=writing.begin.removeprefix(mark)), form)
        return self._call(replace(writing, call=writing.call.removeprefix(mark)), form.tools)

    def _call(self, writing: Writing, tools: Tools) -> str:
        """Return an expression for a call of one of the functions."""
        named = (self._named_call(writing, name, schema) for name, schema in tools.items())
        return self._rule(" | ".join(named))

    def _named_call(self, writing: Writing, name: str, schema: Schema) -> str:
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
                    parts.append(self._arguments(writing, schema, self._custom.get(name)))
        return self._rule(" ".join(filter(None, parts)))

    def thought(self, form: AnswerFormat) -> str:
        """Return an expression for reasoning in front of an answer; "" where there is none."""
        thinking, layout = form.thinking, form.layout
        if thinking is None:
            return ""
        without = layout.opens if thinking.calls_end_it and isinstance(layout, Marked) else ()
        end = self._rule(" | ".join(self._until(mark, without) for mark in thinking.closes))
        if form.is_thinking:
            return f"{end} /\\s{{0,4}}/"
        opens = " | ".join(self.text(mark) for mark in thinking.opens)
        return f"(({opens}) {end} /\\s{{0,4}}/)?"

    def _arguments(self, writing: Writing, schema: Schema, grammar: TextGrammar | None) -> str:
        """Return an expression for arguments: those that are required first.

        `grammar` is that of the only argument, the input of a custom tool.
        """
        properties = properties_of(schema)
        required_too = object_of(schema).get("required")
        named = required_too if isinstance(required_too, list) else ()
        shared = {key: schema[key] for key in SHARED if key in schema}
        made = {
            key: self._argument(writing, key, value, shared, grammar)
            for key, value in properties.items()
        }
        required = [made[key] for key in made if key in named]
        optional = [made[key] for key in made if key not in named]
        return _in_a_row(required, optional, self.text(writing.comma))

    def _argument(
        self,
        writing: Writing,
        key: str,
        schema: Any,
        shared: Schema,
        grammar: TextGrammar | None,
    ) -> str:
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
                    parts.append(self._text_argument(grammar, tail))
        return self._rule(" ".join(filter(None, parts)))

    def _text_argument(self, grammar: TextGrammar | None, tail: str) -> str:
        """Return an expression for a text as it stands, and what ends it."""
        if grammar is None:
            return self._until(tail)
        if grammar.syntax == "regex":
            return self._until(tail, text=f"/(?:{_slashed(grammar.definition)})/")
        ending = None if self._controls.search(tail) else ending_at(grammar.definition, tail)
        if ending is None:  # no text holds a control token
            return f"%lark {{\n{grammar.definition}\n}} {self.text(tail)}"
        return f"%lark {{\n{ending}\n}}"

    def _until(self, mark: str, without: Iterable[str] = (), text: str = ANY_TEXT) -> str:
        """Return an expression for a text up to a mark, and the mark.

        The text holds none of the marks `without`.
        """
        text += self._without(without)
        if found := self._controls.match(mark):
            rest = self.text(mark[found.end() :])
            return f"{self._terminal(text)} <[{self._ids[found[0]]}]> {rest}"
        return self._rule(text, f"[suffix={_quoted(mark)}]")

    def _said(self, without: Iterable[str], frame: Iterable[str] = (), begin: str = "") -> str:
        """Return an expression for a text, perhaps none, that holds none of the marks `without`.

        `frame` are marks that may be among it, `begin` is a regex of its first characters.
        """
        text = self._terminal(f"/(?s:{begin or '.'}.*)/{self._without(without)}")
        controls = [self.text(mark) for mark in frame if mark in self._ids]
        return self._rule(f"({' | '.join([text, *controls])})*" if controls else f"{text}?")

    def _without(self, marks: Iterable[str]) -> str:
        """Return what keeps marks out of a text, which holds no control tokens anyway."""
        without = ""
        for before, each in ("(?s:.*)", marks), ("", self._never_first):
            banned = [_escaped(mark) for mark in each if not self._controls.match(mark)]
            if banned:
                without += f" & ~/{before}({'|'.join(banned)})(?s:.*)/"
        return without

    def _terminal(self, expression: str) -> str:
        name = f"TEXT_{len(self.rules)}"
        self.rules.append(f"{name}: {expression}")
        return name

    def _json(self, schema: Any) -> str:
        return self._rule(f"%json {json.dumps(schema)}")

    def _rule(self, expression: str, attributes: str = "") -> str:
        name = f"rule_{len(self.rules)}"
        self.rules.append(f"{name}{attributes}: {expression}")
        return name


def _of_parameters(schema: Schema) -> Schema:
    """Return the schema of a function's arguments, which has no others than its parameters.

    A schema that says nothing of further properties allows any: a function that lists what it takes
    does not mean that, and small models write until `max_tokens`. One without a list, or whose
    properties come from elsewhere as well, is taken at its word.
    """
    schema = {**schema, "type": "object"}
    if "properties" not in schema or not schema.keys() <= LISTING:
        return schema
    return {**schema, "additionalProperties": False}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # escapes of letters are none in a suffix


def _slashed(regex: str) -> str:
    """Return a regex as it stands between the slashes of Lark."""
    return re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", regex).replace("\n", "\\n")


def _escaped(text: str) -> str:
    """Return a regex that matches a text, as it stands between the slashes of Lark."""
    return re.sub(r"[\\.+*?()|\[\]{}^$#&~/-]", r"\\\g<0>", text).replace("\n", "\\n")


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
