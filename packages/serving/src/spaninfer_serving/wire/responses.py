"""OpenAI's Responses API as it travels: requests, items, responses, and events."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import from_json

from spaninfer_serving.wire.chat import MAX_MESSAGES, Effort
from spaninfer_serving.wire.fields import told_by_type
from spaninfer_serving.wire.input_parts import InputParts, InputText, InputTexts
from spaninfer_serving.wire.sampling import DrawFields
from spaninfer_serving.wire.structured import refused
from spaninfer_serving.wire.tools import MAX_TOOLS, NAME

STRICT = ConfigDict(extra="forbid", strict=True)

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputMessage(BaseModel):
    """A turn of the conversation, an answer of ours among them."""

    model_config = STRICT

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


class InputCall(BaseModel):
    """A call that the model has made."""

    model_config = STRICT

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


class InputCallOutput(BaseModel):
    """The result of a call."""

    model_config = STRICT

    type: Literal["function_call_output"]
    call_id: str
    output: InputTexts
    id: str | None = None
    status: ItemStatus | None = None


class ReasoningText(BaseModel):
    """A piece of the model's reasoning."""

    model_config = STRICT

    type: Literal["reasoning_text"]
    text: str


class InputReasoning(BaseModel):
    """The reasoning of an answer, sent back."""

    model_config = STRICT

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
    | Annotated[InputReasoning, Tag("Kind:reasoning")],
    told_by_type(
        "an item",
        "message",
        "function_call",
        "function_call_output",
        "reasoning",
        absent="message",
    ),
]


class FunctionTool(BaseModel):
    """A function that the model may call; `strict` is accepted, see wire/tools.py."""

    model_config = STRICT

    type: Literal["function"]
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(BaseModel):
    """The one function that has to be called."""

    model_config = STRICT

    type: Literal["function"]
    name: str


ToolChoice: TypeAlias = Literal["none", "auto", "required"] | NamedFunction


class TextFormat(BaseModel):
    """The form of the answer's text."""

    model_config = STRICT

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(max_length=64)] | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_a_schema_or_needs_none(self) -> TextFormat:
        if (self.type == "json_schema") != (None not in (self.schema_, self.name)):
            why = 'and name belong to the type "json_schema", and to no other'
            raise refused("text.format.schema", "invalid_response_format", why)
        return self


class TextOptions(BaseModel):
    """Options of the answer's text."""

    model_config = STRICT

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None  # the default; others are refused


class ReasoningOptions(BaseModel):
    """Reasoning options; a summary is the reasoning itself, in the item's content."""

    model_config = STRICT

    effort: Effort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None


class ResponseStreamOptions(BaseModel):
    """Extra content of a stream beside the answer."""

    model_config = STRICT

    include_obfuscation: bool = False  # accepted: nothing is padded here either way


class ResponsesRequest(DrawFields):
    """The body of POST /v1/responses."""

    not_supported: ClassVar = {
        "access_programs": (None,),
        "background": (None, False),
        "context_management": (None, []),
        "conversation": (None,),
        "image": (None,),
        "max_tool_calls": (None,),
        "moderation": (None,),
        "prompt": (None,),
        "top_logprobs": (None, 0),
        "truncation": (None, "disabled"),
    }

    input: (
        str
        | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    )
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(
        default_factory=list
    )
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions = Field(default_factory=TextOptions)
    reasoning: ReasoningOptions = Field(default_factory=ReasoningOptions)
    # Reasoning is never encrypted here: its text stands in the item's content.
    include: list[Literal["reasoning.encrypted_content"]] = Field(default_factory=list)
    store: bool = True
    stream_options: ResponseStreamOptions | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] = Field(default_factory=dict)

    # accepted because clients send them; they cannot change an answer here
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None


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


OutputItem: TypeAlias = OutputMessage | OutputReasoning | OutputCall


class InputTokensDetails(BaseModel):
    """The prompt's tokens by origin."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(BaseModel):
    """The answer's tokens by use; those of reasoning as the tokenizer counts its text."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Token counts of a whole request."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(BaseModel):
    """Why an answer is not whole."""

    reason: Literal["max_output_tokens"]


class ResponseObject(BaseModel):
    """A response: what was asked, and what has become of it so far."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Literal["in_progress", "completed", "incomplete"]
    background: bool = False
    error: None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem] = Field(default_factory=list)
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: ReasoningOptions
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: ToolChoice
    tools: list[FunctionTool]
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None


class DeletedResponse(BaseModel):
    """The answer to DELETE /v1/responses/{id}."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


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
)
"""An event of a streamed response, all kinds of which are numbered together."""
