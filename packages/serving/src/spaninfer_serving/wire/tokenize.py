"""Texts, conversations and token ids as they travel where nothing is generated."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, model_validator

from spaninfer_serving.wire.chat import (
    MAX_MESSAGES,
    ConversationFields,
    Message,
    SeenConversation,
)
from spaninfer_serving.wire.fields import Integers, RequestFields


class TemplateRequest(ConversationFields, RequestFields):
    """The body of POST /apply-template: a conversation."""

    model: str | None = None


class TemplateResponse(BaseModel):
    """The text that the chat template makes of a conversation."""

    prompt: str


class TokenizeRequest(SeenConversation, TemplateRequest):
    """The body of POST /tokenize: a text as `prompt`, or a conversation as `messages`."""

    prompt: str | None = None
    add_special_tokens: bool = True  # of a text: those that the tokenizer puts around it
    messages: Annotated[list[Message], Field(max_length=MAX_MESSAGES, fail_fast=True)] = Field(
        default_factory=list
    )
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _check_one(self) -> TokenizeRequest:
        if (self.prompt is None) != bool(self.messages):
            raise ValueError("needs either a prompt or messages")
        if self.prompt is not None and self.mm_processor_kwargs is not None:
            raise ValueError("has mm_processor_kwargs, which are for messages, and a prompt")
        return self


class MediaTokens(BaseModel):
    """The tokens that stand for one image, video or clip of a conversation."""

    part: str  # its place, such as messages[0].content[1]
    kind: str
    count: int


class TokenizeResponse(BaseModel):
    """Token ids, with `return_token_strs` the text of each; of a conversation, what its media
    take.
    """

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None
    media: list[MediaTokens] | None = None


class DetokenizeRequest(RequestFields):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: Integers


class DetokenizeResponse(BaseModel):
    """The text of token ids, control tokens included."""

    prompt: str
