"""Answers with long lists of log-probabilities as JSON, piece by piece.

What writes JSON holds the interpreter until it is done, 190 ms for 8,000 tokens with 20 top tokens
each, and no step is launched meanwhile; and all of it would be in memory several times over. So it
is made of `PIECE` tokens at a time, when the client has read what came before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json

T = TypeVar("T")
Lists: TypeAlias = Mapping[str, Iterable[str]]
"""The JSON of long lists in pieces, by the fields that hold them."""

PIECE = 128  # tokens; 3 ms with 20 top tokens each (one of two busy cores of an AMD EPYC)


class TextEvents:
    """The JSON of a stream's most frequent events: text for one choice, and its log-probabilities
    where they are asked for; nothing else.

    Made from one such event, all others of which differ from it in these alone. Making models and
    writing them takes 36 to 60 us (one of two crowded cores of an AMD EPYC, 2026-11-22).
    """

    _MARK = "\ue000"

    def __init__(self, event: Callable[[str], BaseModel]) -> None:
        """Take what returns the event with a text in it, and null for log-probabilities."""
        whole = event(self._MARK).model_dump_json(exclude_unset=True).encode()
        self._head, _, self._tail = whole.rpartition(to_json(self._MARK))
        self._middle, _, self._end = self._tail.partition(_NO_LOGPROBS)

    def json(self, texts: Iterable[str]) -> list[bytes]:
        """Return an event for each text."""
        head, tail = self._head, self._tail
        return [head + to_json(text) + tail for text in texts]

    def json_with(self, text: str, logprobs: object) -> bytes:
        """Return the event of a text with log-probabilities."""
        middle = self._middle + _LOGPROBS
        return self._head + to_json(text) + middle + _json_of(logprobs) + self._end


_NO_LOGPROBS, _LOGPROBS = b'"logprobs":null', b'"logprobs":'


def _json_of(logprobs: object) -> bytes:
    return to_json(logprobs, inf_nan_mode="null")


def event_with(event: BaseModel, logprobs: object) -> bytes:
    """Return the JSON of an event with log-probabilities in place of its null."""
    whole = event.model_dump_json(exclude_unset=True).encode()
    return whole.replace(_NO_LOGPROBS, _LOGPROBS + _json_of(logprobs), 1)


def in_pieces(entries: Iterable[T]) -> Iterator[list[T]]:
    """Yield entries, at most `PIECE` at a time; an empty list where there are none."""
    left = iter(entries)
    piece = list(islice(left, PIECE))
    yield piece
    while piece := list(islice(left, PIECE)):
        yield piece


def answer_in_pieces(
    response: BaseModel, choices: Iterable[tuple[BaseModel, Lists]], lists: Lists
) -> Iterator[str]:
    """Yield the JSON of an answer: `response` without choices, then each choice; in place of their
    fields that are null come the pieces of `lists`.
    """
    # No text can hold these marks: a quotation mark in a text has a backslash in front.
    before, _, after = response.model_dump_json().partition('"choices":[]')
    yield before + '"choices":['
    for number, (choice, of_choice) in enumerate(choices):
        yield "," if number else ""
        yield from filled(choice.model_dump_json(), of_choice)
    yield from filled("]" + after, lists)


def filled(json: str, lists: Lists) -> Iterator[str]:
    """Yield JSON with lists, in the order of its fields, in place of their nulls."""
    for name, pieces in lists.items():
        before, _, json = json.partition(f'"{name}":null')
        yield f'{before}"{name}":'
        yield from pieces
    yield json


def chat_pieces(parts: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the JSON of wire.chat.ChatLogprobs whose contents come in parts."""
    yield '{"content":['
    yield from _joined(parts)
    yield "]}"


def completion_pieces(parts: Iterable[Mapping[str, Sequence[object]]]) -> Iterator[str]:
    """Yield the JSON of wire.completions.CompletionLogprobs whose parallel lists come in parts; the
    largest goes first, unkept.
    """
    columns: dict[str, list[str]] = {"tokens": [], "token_logprobs": [], "text_offset": []}

    def top_tokens() -> Iterator[Sequence[object]]:
        for part in parts:
            for name, column in columns.items():
                column += _joined([part[name]])
            yield part["top_logprobs"]

    yield '{"top_logprobs":['
    yield from _joined(top_tokens())
    for name, column in columns.items():
        yield f'],"{name}":['
        yield ",".join(column)
    yield "]}"


def _joined(lists: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the items of lists as JSON, with commas between them."""
    comma = ""
    for items in lists:
        if items:
            yield comma + _json_of(items).decode()[1:-1]
            comma = ","
