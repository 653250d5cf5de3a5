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
from spaninfer_serving.wire.tools import FunctionCall, FunctionDelta, ToolCall, ToolCallDelta


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
        ToolCall(id=call.id, function=FunctionCall(name=call.name, arguments=call.arguments))
        for call in answer.calls
    ]
    return AssistantMessage(
        content=answer.content or (None if calls else ""),
        reasoning_content=answer.reasoning or None,
        tool_calls=calls or None,
    )


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
            case CallStart(index, call_id, name):
                function = FunctionDelta(name=name, arguments="")
                calls[index] = ToolCallDelta(
                    index=index, id=call_id, type="function", function=function
                )
            case Arguments(index, text):
                known = calls.setdefault(
                    index, ToolCallDelta(index=index, function=FunctionDelta(arguments=""))
                )
                known.function.arguments += text
    delta = Delta()
    if content:
        delta.content = "".join(content)
    if reasoning:
        delta.reasoning_content = "".join(reasoning)
    if calls:
        delta.tool_calls = list(calls.values())
    return delta
