"""Items of OpenAI's Responses API, as they travel in requests and in responses."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, Field, Tag, field_validator, model_validator
from pydantic_core import from_json

from spaninfer_serving.wire.fields import ObjectFields, type_discriminator
from spaninfer_serving.wire.input_parts import InputParts, InputText

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputMessage(ObjectFields):
    """A turn of the conversation, an answer of ours among them."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: InputParts
    id: str | None = None
    status: ItemStatus | None = None
    phase: Literal["commentary", "final_answer"] | None = None

    @model_validator(mode="after")
    def _check_role(self) -> InputMessage:
        has_media = not all(isinstance(part, str | InputText) for part in self.content)
        if self.role != "user" and has_media:
            raise ValueError(f"has media, and the role is {self.role}; media are a user's")
        return self


class InputCall(ObjectFields):
    """A call that the model has made."""

    not_supported: ClassVar = {
        "async": (None, False),
        "caller": (None, {"type": "direct"}),
        "namespace": (None,),
    }

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: ItemStatus | None = None

    @field_validator("arguments")
    @classmethod
    def _check_object(cls, arguments: str) -> str:
        if not isinstance(from_json(arguments or "{}"), dict):
            raise ValueError("should be the text of a JSON object")
        return arguments


class InputCustomCall(ObjectFields):
    """A call of a custom tool that the model has made."""

    not_supported: ClassVar = {
        "async": (None, False),
        "caller": (None, {"type": "direct"}),
        "namespace": (None,),
    }

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str
    id: str | None = None
    status: ItemStatus | None = None


class InputCallOutput(ObjectFields):
    """The result of a call, of a function or a custom tool."""

    not_supported: ClassVar = {
        "caller": (None, {"type": "direct"}),
        "name": (None,),
        "namespace": (None,),
    }

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: InputParts
    id: str | None = None
    status: ItemStatus | None = None


class ReasoningText(ObjectFields):
    """A piece of the model's reasoning."""

    type: Literal["reasoning_text"]
    text: str


class InputReasoning(ObjectFields):
    """The reasoning of an answer, sent back."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: Annotated[list[Any], Field(max_length=0)] = Field(default_factory=list)
    content: Annotated[list[ReasoningText], Field(fail_fast=True)] | None = None
    encrypted_content: None = None
    status: ItemStatus | None = None


InputItem: TypeAlias = Annotated[
    Annotated[InputMessage, Tag("Kind:message")]
    | Annotated[InputCall, Tag("Kind:function_call")]
    | Annotated[InputCallOutput, Tag("Kind:function_call_output")]
    | Annotated[InputCustomCall, Tag("Kind:custom_tool_call")]
    | Annotated[InputCallOutput, Tag("Kind:custom_tool_call_output")]
    | Annotated[InputReasoning, Tag("Kind:reasoning")],
    type_discriminator(
        "an item",
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "reasoning",
        absent="message",
    ),
]


class OutputText(BaseModel):
    """The text of a message."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = Field(default_factory=list)
    logprobs: list[Any] = Field(default_factory=list)


class OutputMessage(BaseModel):
    """A message of the model."""

    type: Literal["message"] = "message"
    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class OutputReasoning(BaseModel):
    """Reasoning of the model."""

    type: Literal["reasoning"] = "reasoning"
    id: str
    status: ItemStatus
    summary: list[Any] = Field(default_factory=list)
    content: list[ReasoningText]


class OutputCall(BaseModel):
    """A function that the model calls; `incomplete` where the call broke off and was none."""

    type: Literal["function_call"] = "function_call"
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class OutputCustomCall(BaseModel):
    """A custom tool that the model calls; `incomplete` as of a function."""

    type: Literal["custom_tool_call"] = "custom_tool_call"
    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str


OutputItem: TypeAlias = OutputMessage | OutputReasoning | OutputCall | OutputCustomCall
