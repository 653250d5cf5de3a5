"""Parts of a parsed answer, in the order in which the model wrote them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins: its number in the answer, its id, and the function as the model named it.

    It begins when its arguments do, so a call that is malformed before never was one. `is_custom`:
    what follows is the text of a custom tool's input.
    """

    index: int
    id: str
    name: str
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of a call's arguments; all pieces together are a JSON object, or a custom input."""

    index: int
    text: str
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call is complete."""

    index: int


@dataclass(frozen=True, slots=True)
class CallBroken:
    """A call that began proves malformed: no call, but content, as the model wrote it."""

    index: int
    text: str


Event: TypeAlias = Content | Reasoning | CallStart | Arguments | CallEnd | CallBroken


def merged(events: Iterable[Event]) -> list[Event]:
    """Return the events with neighbouring pieces of one text as one."""
    runs: list[list[Event]] = []
    for event in events:
        if runs and _continues(runs[-1][-1], event):
            runs[-1].append(event)
        else:
            runs.append([event])
    return [_joined(run) for run in runs]


def _continues(before: Event, event: Event) -> bool:
    match before, event:
        case (Content(), Content()) | (Reasoning(), Reasoning()):
            return True
        case Arguments(index=first), Arguments(index=second):
            return first == second
    return False


def _joined(run: list[Event]) -> Event:
    if len(run) == 1:
        return run[0]
    text = "".join(event.text for event in run if not isinstance(event, CallStart | CallEnd))
    match run[0]:
        case Content():
            return Content(text)
        case Reasoning():
            return Reasoning(text)
        case event:
            assert isinstance(event, Arguments), "others are no texts"
            return replace(event, text=text)


@dataclass(slots=True)
class ParsedCall:
    """A tool call of a whole answer."""

    id: str
    name: str
    arguments: str = ""
    is_complete: bool = False
    is_custom: bool = False


@dataclass(slots=True)
class ParsedAnswer:
    """A whole answer: content, reasoning and calls."""

    content: str = ""
    reasoning: str = ""
    calls: list[ParsedCall] = field(default_factory=list)


def assembled(events: Iterable[Event]) -> ParsedAnswer:
    """Return the answer that events tell of; a call that broke off is content."""
    answer, calls = ParsedAnswer(), dict[int, ParsedCall]()
    texts: dict[object, list[str]] = {}
    for event in events:
        match event:
            case Content(text):
                texts.setdefault("content", []).append(text)
            case Reasoning(text):
                texts.setdefault("reasoning", []).append(text)
            case CallStart(index, call_id, name, is_custom):
                calls[index] = ParsedCall(call_id, name, is_custom=is_custom)
            case Arguments(index, text):
                texts.setdefault(index, []).append(text)
            case CallEnd(index):
                calls[index].is_complete = True
            case CallBroken(index, text):
                del calls[index]
                texts.setdefault("content", []).append(text)
    answer.content, answer.reasoning = ("".join(texts.get(k, ())) for k in ("content", "reasoning"))
    for index, call in calls.items():
        call.arguments = "".join(texts.get(index, ()))
        answer.calls.append(call)
    return answer
