"""Dialect and reasoning, found from the text of a chat template."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from spaninfer_serving.dialects.marked import Thinking
from spaninfer_serving.dialects.table import DIALECTS, THINKING, Dialect


def find_dialect(template: str) -> str | None:
    """Return the name of the first dialect of which a template has all signs, None for none."""
    for name, dialect in DIALECTS.items():
        if any(all(sign in template for sign in signs) for signs in dialect.signs):
            return name
    return None


def find_thinking(template: str) -> Thinking | None:
    """Return the marks of reasoning whose end a template knows."""
    for thinking in THINKING:
        if any(mark in template for mark in thinking.closes):
            return thinking
    return None


def is_opened(thinking: Thinking | None, prompt: str) -> bool:
    """Return whether a prompt ends inside of reasoning; `prompt` is what the template wrote."""
    return thinking is not None and prompt.rstrip().endswith(thinking.opens)


def marks_in(parts: Iterable[Dialect | Thinking | None]) -> frozenset[str]:
    """Return all strings that tell the parts of an answer apart."""
    return frozenset(text for part in parts for text in _texts(part))


def _texts(value: object) -> Iterator[str]:
    match value:
        case Dialect(layout=layout):
            yield from _texts(layout)
        case str() if value:
            yield value
        case tuple():
            for each in value:
                yield from _texts(each)
        case _ if dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                yield from _texts(getattr(value, field.name))
