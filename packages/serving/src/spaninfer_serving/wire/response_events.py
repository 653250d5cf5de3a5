"""Events of a streamed response of OpenAI's Responses API, as they travel."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, Field

from spaninfer_serving.wire.response_items import OutputItem, OutputText, ReasoningText
from spaninfer_serving.wire.responses import ResponseObject


class _Event(BaseModel):
    sequence_number: int


StateName = Literal[
    "response.created", "response.in_progress", "response.completed", "response.incomplete"
]


class ResponseEvent(_Event):
    """The response as it is now."""

    type: StateName
    response: ResponseObject


class ItemEvent(_Event):
    """An item begins, or is complete."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class _PartEvent(_Event):
    item_id: str
    output_index: int


class ContentPartEvent(_PartEvent):
    """The content of an item begins, or is complete."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int = 0
    part: OutputText | ReasoningText


class TextDelta(_PartEvent):
    """A message grows."""

    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    content_index: int = 0
    delta: str
    logprobs: list[Any] = Field(default_factory=list)


class TextDone(_PartEvent):
    """A message is whole."""

    type: Literal["response.output_text.done"] = "response.output_text.done"
    content_index: int = 0
    text: str
    logprobs: list[Any] = Field(default_factory=list)


class ReasoningDelta(_PartEvent):
    """The reasoning grows."""

    type: Literal["response.reasoning_text.delta"] = "response.reasoning_text.delta"
    content_index: int = 0
    delta: str


class ReasoningDone(_PartEvent):
    """The reasoning is whole."""

    type: Literal["response.reasoning_text.done"] = "response.reasoning_text.done"
    content_index: int = 0
    text: str


class ArgumentsDelta(_PartEvent):
    """The arguments of a call grow."""

    type: Literal["response.function_call_arguments.delta"] = (
        "response.function_call_arguments.delta"
    )
    delta: str


class ArgumentsDone(_PartEvent):
    """The arguments of a call are whole."""

    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"
    name: str
    arguments: str


class InputDelta(_PartEvent):
    """The input of a custom tool's call grows."""

    type: Literal["response.custom_tool_call_input.delta"] = "response.custom_tool_call_input.delta"
    delta: str


class InputDone(_PartEvent):
    """The input of a custom tool's call is whole."""

    type: Literal["response.custom_tool_call_input.done"] = "response.custom_tool_call_input.done"
    input: str


StreamEvent: TypeAlias = (
    ResponseEvent
    | ItemEvent
    | ContentPartEvent
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | InputDelta
    | InputDone
)
"""An event of a streamed response, all kinds of which are numbered together."""
