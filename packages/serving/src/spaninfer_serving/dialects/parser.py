"""The parser of one answer: text in, in pieces of any size; events out."""

from __future__ import annotations

from dataclasses import dataclass, field

from spaninfer_serving.dialects.answer import Answer, NewId, Tools, openai_id
from spaninfer_serving.dialects.custom_inputs import CustomInputs, InputReader
from spaninfer_serving.dialects.events import Event, merged
from spaninfer_serving.dialects.marked import Marked, Thinking
from spaninfer_serving.dialects.table import Dialect, Layout


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The format of the answers to one request: makes a parser for each choice.

    `thinking` are the marks of reasoning; `is_thinking`: the prompt has opened it. `tools` are the
    functions that may be called, `custom` those that stand for custom tools. With `is_single`,
    calls behind the first are left out.
    """

    layout: Layout
    thinking: Thinking | None
    is_thinking: bool
    tools: Tools
    new_id: NewId
    is_single: bool = False
    custom: CustomInputs = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        dialect: Dialect | None,
        thinking: Thinking | None,
        tools: Tools,
        *,
        is_thinking: bool = False,
        is_single: bool = False,
        custom: CustomInputs | None = None,
    ) -> AnswerFormat | None:
        """Return the format of a dialect's answers; None where they are nothing but content."""
        layout: Layout = dialect.layout if dialect else Marked()
        layout = layout if tools else layout.without_calls()
        if layout == Marked() and thinking is None:
            return None
        new_id = dialect.new_id if dialect else openai_id
        return cls(layout, thinking, is_thinking, tools, new_id, is_single, custom or {})


class AnswerParser:
    """Reads one answer. The events are the same however the text is cut."""

    def __init__(self, form: AnswerFormat) -> None:
        self._answer = Answer(form.tools, form.new_id)
        self._is_single = form.is_single
        self._inputs = InputReader(form.custom) if form.custom else None
        self._work = form.layout.read(self._answer, form.thinking, form.is_thinking)
        self._step()

    def push(self, text: str) -> list[Event]:
        """Return what a piece of the text brings."""
        if not text:
            return []
        self._answer.reader.feed(text)
        self._step()
        return self._events()

    def end(self, *, is_cut: bool) -> list[Event]:
        """Return what was held back; `is_cut`: a limit ended the answer, not the model."""
        self._answer.end(is_cut=is_cut)
        self._step()
        self._answer.close()
        return self._events()

    def _step(self) -> None:
        next(self._work, None)

    def _events(self) -> list[Event]:
        events = self._answer.drain()
        if self._is_single:
            events = [event for event in events if getattr(event, "index", 0) == 0]
        if self._inputs is not None:
            events = list(self._inputs.read(events))
        return merged(events)
