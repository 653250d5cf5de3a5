"""A chat template's support for tools and reasoning, found by reading and by trying it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from spaninfer_engine import TemplateError
from spaninfer_engine.serving import ChatTemplate, Tokenizer

from spaninfer_serving.dialects.detect import find_dialect, find_thinking, marks_in
from spaninfer_serving.dialects.harmony import Harmony
from spaninfer_serving.dialects.marked import Thinking
from spaninfer_serving.dialects.table import DIALECTS, Dialect

NEEDLE, TOOL_NAME, RESULT = "probe_of_arguments", "probe_of_tools", "probe_of_results"
SWITCHES = {
    "enable_thinking": re.compile(r"\benable_thinking\b"),
    "thinking": re.compile(r"(?<![.\w])thinking is (not )?defined"),
}
EFFORT = "reasoning_effort"

EmptyContent = Literal["null", "absent", "empty"]


@dataclass(frozen=True, slots=True)
class CallStyle:
    """The form in which a template takes calls: arguments as an object or as JSON text, and what
    stands for no content.
    """

    are_objects: bool = True
    no_content: EmptyContent = "null"


@dataclass(frozen=True, slots=True)
class ChatTraits:
    """Everything that requests with tools or reasoning need to know of the model's template.

    `switches` are the variables that turn reasoning on and off; `controls` the control tokens by
    which answers are taken apart, with their ids: they have to stay in the text.
    """

    dialect_name: str | None
    is_named: bool  # by the operator
    thinking: Thinking | None
    takes_tools: bool
    call_style: CallStyle
    result_media: frozenset[str]  # kinds of media that it shows in results of tools
    switches: tuple[str, ...]
    has_effort: bool
    controls: Mapping[str, int]

    @property
    def summary(self) -> str:
        """A line that says what was found."""
        calls = "none"
        if self.takes_tools:
            found = "named" if self.is_named else "from the chat template"
            calls = f"{self.dialect_name} ({found})" if self.dialect_name else "unknown"
        marks = "none"
        if self.thinking is not None:
            marks = f"{self.thinking.opens[0]} … {self.thinking.closes[0]}"
        elif self.dialect is not None and isinstance(self.dialect.layout, Harmony):
            marks = "by channel"
        return f"tool calls: {calls}; reasoning: {marks}"

    @property
    def dialect(self) -> Dialect | None:
        """The dialect of calls."""
        return DIALECTS[self.dialect_name] if self.dialect_name else None


def traits_of(
    template: ChatTemplate, tokenizer: Tokenizer, tool_parser: str | None = None
) -> ChatTraits:
    """Return the traits of a template; `tool_parser` names its dialect where that is known."""
    source = _source(template, has_tools=False) + _source(template, has_tools=True)
    name = tool_parser or find_dialect(source)
    thinking, style = find_thinking(source), _find_call_style(template)
    marks = marks_in([DIALECTS[name] if name else None, thinking])
    return ChatTraits(
        dialect_name=name,
        is_named=tool_parser is not None,
        thinking=thinking,
        takes_tools=_takes_tools(template),
        call_style=style,
        result_media=frozenset(_find_result_media(template, style)),
        switches=tuple(name for name, sign in SWITCHES.items() if sign.search(source)),
        has_effort=EFFORT in source,
        controls=dict(_controls_in(tokenizer, marks)),
    )


def _source(template: ChatTemplate, *, has_tools: bool) -> str:
    """Return the text of a template; "" where there is none for such conversations."""
    with suppress(TemplateError):
        return template.source(has_tools=has_tools)
    return ""


def _controls_in(tokenizer: Tokenizer, marks: frozenset[str]) -> Iterator[tuple[str, int]]:
    """Yield the control tokens that marks are written with."""
    for token_id in sorted(tokenizer.special_ids):
        text = tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        if text and any(text in mark for mark in marks):
            yield text, token_id


def _takes_tools(template: ChatTemplate) -> bool:
    return TOOL_NAME in _rendered(template, [_USER])


def _find_call_style(template: ChatTemplate) -> CallStyle:
    """Return the first style in which a template writes a call's arguments as JSON, or unquoted.

    Objects come first, as transformers has them: a text would become a quoted one. A template that
    joins arguments to its own text fails with an object. Of one that writes no calls, the first
    style that it takes.
    """
    contents: tuple[EmptyContent, ...] = ("null", "absent", "empty")
    taken = []
    for no_content, are_objects in product(contents, (True, False)):
        style = CallStyle(are_objects, no_content)
        text = _rendered(template, [_USER, _calling(style)])
        if NEEDLE in text and not _WRONG.search(text):
            return style
        if text:
            taken.append(style)
    return next(iter(taken), CallStyle())


def _calling(style: CallStyle) -> dict[str, Any]:
    """Return a message with a call."""
    function = {"name": TOOL_NAME, "arguments": _PROBE[style.are_objects]}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    return {"role": "assistant", "tool_calls": [call], **content_of("", style)}


def _find_result_media(template: ChatTemplate, style: CallStyle) -> Iterator[str]:
    """Yield the kinds of media for which a template writes something in the result of a tool, other
    than the part as it is in Python or JSON.
    """
    before, text = [_USER, _calling(style)], {"type": "text", "text": RESULT}
    result = {"role": "tool", "tool_call_id": "abcdefghi", "name": TOOL_NAME}
    without = _rendered(template, [*before, result | {"content": [text]}])
    for kind in ("image", "video", "audio"):
        shown = _rendered(
            template, [*before, result | {"content": [text, {"type": kind, kind: ""}]}]
        )
        if RESULT in shown and len(shown) > len(without) and not _PART.search(shown):
            yield kind


def content_of(text: str, style: CallStyle) -> Mapping[str, str | None]:
    """Return the content of an assistant that makes calls, as a part of its message."""
    if text or style.no_content == "empty":
        return {"content": text}
    return {"content": None} if style.no_content == "null" else {}


_USER = {"role": "user", "content": "?"}
_TOOL = {
    "name": TOOL_NAME,
    "description": "",
    "parameters": {"type": "object", "properties": {}, "required": []},
}
_PROBE: dict[bool, Any] = {True: {NEEDLE: "x"}, False: f'{{"{NEEDLE}": "x"}}'}
_PART = re.compile(rf"""['"]text['"]: *\\*['"]{RESULT}""")  # as Python or JSON writes it
_WRONG = re.compile(rf"'{NEEDLE}|\\\"{NEEDLE}|\bNone\b")  # Python's spelling, a text in a text


def _rendered(template: ChatTemplate, messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text with a tool, without one where the template refuses that; "" for neither."""
    for tools in ([{"type": "function", "function": _TOOL}], None):
        with suppress(TemplateError):
            return template.render(messages, tools=tools).text
    return ""
