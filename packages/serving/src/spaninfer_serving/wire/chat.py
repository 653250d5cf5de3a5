"""Chat completions as they travel."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, GetJsonSchemaHandler, field_validator, model_validator
from pydantic_core import CoreSchema, to_json

from spaninfer_serving.wire.fields import ObjectFields, allow_null
from spaninfer_serving.wire.media import MEDIA_PARTS, MediaPart, Part, ProcessorOptions, TextPart
from spaninfer_serving.wire.prompt_logprobs import PromptLogprobs
from spaninfer_serving.wire.sampling import SamplingFields, Usage
from spaninfer_serving.wire.structured import refused
from spaninfer_serving.wire.tools import MAX_TOOLS, AnyToolCall, Tool, ToolCallDelta, ToolChoice

# Each takes some tokens of the context; a body of 700,000 held the interpreter for 6 s.
MAX_MESSAGES = 10_000

# All variables of a template, as JSON; documents may be among them. A megabyte of them holds the
# interpreter for 35 ms while control tokens are looked for.
MAX_VARIABLES_BYTES = 1 << 20

# What a template's variables may not be called: these come from the request itself, or from Jinja.
RESERVED_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "self"})


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Message(ObjectFields):
    """One turn of the conversation.

    An answer of OpenAI's, or of ours, is sent back as it came: with fields that hold nothing.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Field(fail_fast=True)]
    name: str | None = None

    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None

    tool_calls: list[AnyToolCall] = Field(default_factory=list)  # of an assistant
    tool_call_id: str | None = None  # of a tool: the call that this is the result of
    reasoning_content: str | None = None  # of an assistant

    @model_validator(mode="before")
    @classmethod
    def _drop_what_holds_nothing(cls, message: object) -> object:
        """Drop null, which clients send for any field; an answer's content may be null as well."""
        if not isinstance(message, dict):
            return message
        kept = {name: value for name, value in message.items() if value is not None}
        if message.get("role") == "assistant" and ("content" in message or "tool_calls" in kept):
            kept.setdefault("content", "")
        return kept

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Describe what is read: an answer's content may be missing, and null have any name."""
        schema = super().__get_pydantic_json_schema__(core, handler)
        described = handler.resolve_ref_schema(schema)
        described["required"].remove("content")
        del described["additionalProperties"]
        described["unevaluatedProperties"] = {"type": "null"}
        allow_null(described)
        return schema

    @model_validator(mode="after")
    def _check_role(self) -> Message:
        if self.role != "assistant" and (self.tool_calls or self.reasoning_content is not None):
            raise ValueError(f"has tool_calls or reasoning_content, and the role is {self.role}")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError(f"has the role {self.role}; a tool_call_id belongs to tools alone")
        if self.role not in ("user", "tool") and self.media():
            why = "media are a user's, or a tool's"
            raise ValueError(f"has media, and the role is {self.role}; {why}")
        return self

    def text(self) -> str:
        """Return the content as one string."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    def media(self) -> dict[int, MediaPart]:
        """Return the parts that are images, videos or audio, by their numbers in the content."""
        if isinstance(self.content, str):
            return {}
        parts = enumerate(self.content)
        return {at: part for at, part in parts if isinstance(part, MEDIA_PARTS)}


class ConversationFields(BaseModel):
    """The fields from which the prompt of a chat is made."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(
        default_factory=list
    )
    tool_choice: ToolChoice = "auto"
    reasoning_effort: Effort | None = None

    def media(self) -> dict[tuple[int, int], MediaPart]:
        """Return the media of all messages, by the numbers of message and part."""
        return {
            (number, at): part
            for number, message in enumerate(self.messages)
            for at, part in message.media().items()
        }

    @property
    def num_chars(self) -> int:
        """Characters of all messages."""
        return sum(len(message.text()) for message in self.messages)

    @field_validator("chat_template_kwargs")
    @classmethod
    def _refuse_what_no_template_takes(cls, variables: dict[str, Any]) -> dict[str, Any]:
        if len(to_json(variables)) > MAX_VARIABLES_BYTES:
            why = f"takes more than {MAX_VARIABLES_BYTES} bytes"
            raise refused(None, "value_too_large", why)
        for name in variables:
            if name in RESERVED_VARIABLES or not name.isidentifier():
                raise refused(name, "reserved_parameter", "is not for a request to set")
        return variables


class SeenConversation(ConversationFields):
    """A conversation whose media are read, and how they are prepared."""

    mm_processor_kwargs: ProcessorOptions | None = None


class ChatRequest(SeenConversation, SamplingFields):
    """The body of POST /v1/chat/completions."""

    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool = True


class TopLogprob(BaseModel):
    """A token that could have been."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(TopLogprob):
    """A token that was chosen, and the top tokens in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities of a choice, or of a piece of it."""

    content: list[ChatLogprob]


class AssistantMessage(BaseModel):
    """The model's whole turn."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[AnyToolCall] | None = None


class ChatChoice(BaseModel):
    """One of n answers."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatResponse(BaseModel):
    """The whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class Delta(BaseModel):
    """The part of a message that a chunk adds."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(BaseModel):
    """A chunk of one of n answers."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatChunk(BaseModel):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    system_fingerprint: str
    prompt_token_ids: list[int] | None = None  # in the first
