"""The answer of one choice of a chat, taken apart into content, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Iterable

from spaninfer_engine import FinishReason, Output

from spaninfer_serving.answers.fields import finish_reason
from spaninfer_serving.dialects.events import (
    Arguments,
    CallBroken,
    CallEnd,
    CallStart,
    Content,
    Event,
    Reasoning,
    assembled,
)
from spaninfer_serving.dialects.parser import AnswerFormat, AnswerParser
from spaninfer_serving.wire.chat import AssistantMessage, Delta
from spaninfer_serving.wire.tools import (
    CustomDelta,
    CustomInput,
    CustomToolCall,
    FunctionCall,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)


class ChatAnswer:
    """Reads one choice while it comes; without a format, all of it is content."""

    def __init__(self, form: AnswerFormat | None) -> None:
        self._parser = AnswerParser(form) if form else None
        self._has_calls = False

    def push(self, output: Output) -> list[Event]:
        """Return what an output brings."""
        if self._parser is None:
            return [Content(output.text)] if output.text else []
        events = self._parser.push(output.text)
        if output.finish_reason is not None:
            events += self._parser.end(is_cut=output.finish_reason is not FinishReason.STOP)
        self._has_calls |= any(isinstance(event, CallEnd) for event in events)
        return events

    def finish_reason(self, reason: FinishReason | None) -> str | None:
        """Return OpenAI's word for why the choice ended."""
        is_call = self._has_calls and reason is FinishReason.STOP
        return "tool_calls" if is_call else finish_reason(reason)


def message_of(events: Iterable[Event]) -> AssistantMessage:
    """Return a whole answer."""
    answer = assembled(events)
    calls = [
        call_of(call.id, call.name, call.arguments, is_custom=call.is_custom)
        for call in answer.calls
    ]
    return AssistantMessage(
        content=answer.content or (None if calls else ""),
        reasoning_content=answer.reasoning or None,
        tool_calls=calls or None,
    )


def call_of(call_id: str, name: str, text: str, *, is_custom: bool) -> ToolCall | CustomToolCall:
    """Return a call of a function with these arguments, or of a custom tool with this input."""
    if is_custom:
        return CustomToolCall(id=call_id, custom=CustomInput(name=name, input=text))
    return ToolCall(id=call_id, function=FunctionCall(name=name, arguments=text))


def delta_of(events: Iterable[Event]) -> Delta:
    """Return what events add to a message; of a call that breaks off, its text is content."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, ToolCallDelta] = {}
    for event in events:
        match event:
            case Content(text) | CallBroken(text=text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallStart(index, call_id, name, is_custom):
                calls[index] = _call_delta(index, is_custom)
                calls[index].id = call_id
                calls[index].type = "custom" if is_custom else "function"
                _part_of(calls[index]).name = name
            case Arguments(index, text, is_custom):
                part = _part_of(calls.setdefault(index, _call_delta(index, is_custom)))
                if isinstance(part, CustomDelta):
                    part.input += text
                else:
                    part.arguments += text
    delta = Delta()
    if content:
        delta.content = "".join(content)
    if reasoning:
        delta.reasoning_content = "".join(reasoning)
    if calls:
        delta.tool_calls = list(calls.values())
    return delta


def _call_delta(index: int, is_custom: bool) -> ToolCallDelta:
    """Return what adds nothing to a call yet."""
    if is_custom:
        return ToolCallDelta(index=index, custom=CustomDelta(input=""))
    return ToolCallDelta(index=index, function=FunctionDelta(arguments=""))


def _part_of(call: ToolCallDelta) -> FunctionDelta | CustomDelta:
    part = call.function or call.custom
    assert part is not None, "it is a function's or a custom tool's"
    return part
