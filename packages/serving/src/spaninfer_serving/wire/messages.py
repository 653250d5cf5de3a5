"""Anthropic's Messages API as it travels: requests, messages, and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, Field, model_validator

from spaninfer_serving.wire.chat import MAX_MESSAGES
from spaninfer_serving.wire.fields import ObjectFields, Strings
from spaninfer_serving.wire.message_blocks import (
    Block,
    CacheControl,
    ContentBlock,
    TextBlock,
)
from spaninfer_serving.wire.sampling import DrawFields
from spaninfer_serving.wire.tools import MAX_TOOLS, NAME

_OF_OTHERS: Mapping[str, frozenset[str]] = {
    "user": frozenset({"thinking", "tool_use"}),
    "assistant": frozenset({"tool_result"}),
    "system": frozenset({"thinking", "tool_use", "tool_result"}),
}
"""Blocks that only another role's turns have."""


class TurnMessage(ObjectFields):
    """A turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[ContentBlock], Field(fail_fast=True)]

    @model_validator(mode="after")
    def _check_role(self) -> TurnMessage:
        kinds = {block.type for block in self.content if not isinstance(block, str)}
        if self.role != "user" and kinds & {"image", "document"}:
            raise ValueError(f"has media, and the role is {self.role}; media are a user's")
        foreign = kinds & _OF_OTHERS[self.role]
        if foreign:
            said = ", ".join(sorted(foreign))
            raise ValueError(f"has {said}, and the role is {self.role}, which has none")
        return self


class ClientTool(Block):
    """A function that the model may call; `strict` is accepted, see wire/tools.py."""

    not_supported: ClassVar = {
        "allowed_callers": (None, ["direct"]),
        "defer_loading": (None, False),
        "eager_input_streaming": (None, True, False),  # arguments come as they are written anyway
        "input_examples": (None, []),
    }

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


class ToolChoice(ObjectFields):
    """The choice of tools."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None  # of the type tool
    disable_parallel_tool_use: bool = False


class ThinkingOptions(ObjectFields):
    """The switch of reasoning; its length is the model's own decision."""

    type: Literal["adaptive", "disabled"]
    display: Literal["summarized"] | None = None


class JsonFormat(ObjectFields):
    """A schema that the answer follows."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputOptions(ObjectFields):
    """Options of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class UserMetadata(ObjectFields):
    """For whom an answer is; it changes nothing here."""

    user_id: str | None = None


class PromptFields(DrawFields):
    """The fields from which the prompt of a message is made."""

    not_supported: ClassVar = {
        "billing_policy": (None,),
        "compaction": (None,),
        "container": (None,),
        "context_management": (None,),
        "diagnostics": (None,),
        "fallback_credit_token": (None,),
        "fallbacks": (None, []),
        "inference_geo": (None,),
        "mcp_servers": (None, []),
        "speed": (None, "standard"),
        "thread": (None,),
        "user_profile_id": (None,),
        "workspace_id": (None,),
    }

    messages: Annotated[
        list[TurnMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    ]
    system: str | Annotated[list[TextBlock], Field(fail_fast=True)] = ""
    tools: Annotated[list[ClientTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(
        default_factory=list
    )
    tool_choice: ToolChoice | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputOptions = Field(default_factory=OutputOptions)
    cache_control: CacheControl | None = None


class CountRequest(PromptFields):
    """The body of POST /v1/messages/count_tokens."""


class MessagesRequest(PromptFields):
    """The body of POST /v1/messages."""

    max_tokens: int
    stop_sequences: Strings | None = None
    metadata: UserMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


class TokenCount(BaseModel):
    """The number of tokens of a prompt."""

    input_tokens: int


class SaidText(BaseModel):
    """Text of the answer."""

    type: Literal["text"] = "text"
    text: str
    citations: None = None


class SaidThinking(BaseModel):
    """Reasoning of the model."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str = ""


class SaidToolUse(BaseModel):
    """A function that the model calls."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


SaidBlock: TypeAlias = SaidText | SaidThinking | SaidToolUse


class MessageUsage(BaseModel):
    """Token counts; what was found in the prefix cache is not among `input_tokens`."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageObject(BaseModel):
    """An answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[SaidBlock] = Field(default_factory=list)
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class MessageStart(BaseModel):
    """The answer begins."""

    type: Literal["message_start"] = "message_start"
    message: MessageObject


class ContentBlockStart(BaseModel):
    """A block begins."""

    type: Literal["content_block_start"] = "content_block_start"
    index: int
    content_block: SaidBlock


class BlockPiece(BaseModel):
    """A piece of a block: of its text, its reasoning or the JSON of its input."""

    type: Literal["text_delta", "thinking_delta", "input_json_delta", "signature_delta"]
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None


class ContentBlockDelta(BaseModel):
    """A block grows."""

    type: Literal["content_block_delta"] = "content_block_delta"
    index: int
    delta: BlockPiece


class ContentBlockStop(BaseModel):
    """A block is whole."""

    type: Literal["content_block_stop"] = "content_block_stop"
    index: int


class MessageEnd(BaseModel):
    """Why the answer has ended."""

    stop_reason: StopReason
    stop_sequence: str | None = None


class MessageDelta(BaseModel):
    """The answer has ended, and took so much."""

    type: Literal["message_delta"] = "message_delta"
    delta: MessageEnd
    usage: MessageUsage


class MessageStop(BaseModel):
    """Nothing more comes."""

    type: Literal["message_stop"] = "message_stop"


MessageEvent: TypeAlias = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
)
"""An event of a streamed message."""
