"""Blocks of a message in Anthropic's Messages API, as they travel in requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, Tag

from spaninfer_serving.wire.fields import type_discriminator

STRICT = ConfigDict(extra="forbid", strict=True)


class CacheControl(BaseModel):
    """A cache breakpoint of Anthropic's API; here every prefix is cached, so it changes nothing."""

    model_config = STRICT

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(BaseModel):
    """An object that may end a prefix which is to be cached."""

    model_config = STRICT

    cache_control: CacheControl | None = None


class TextBlock(Block):
    """A piece of text."""

    type: Literal["text"]
    text: str
    citations: Annotated[list[Any], Field(max_length=0)] | None = None


class ThinkingBlock(BaseModel):
    """The reasoning of an answer, sent back; there are no signatures here."""

    model_config = STRICT

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ToolUseBlock(Block):
    """A call that the model has made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(Block):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[TextBlock], Field(fail_fast=True)] = ""
    is_error: bool = False


class _Source(BaseModel):
    model_config = STRICT


class Base64Source(_Source):
    """The bytes of an image; its format is known by its first bytes."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class UrlSource(_Source):
    """The URL of an image: a data: URL, or what the server's operator has opened."""

    type: Literal["url"]
    url: str


class ImageBlock(Block):
    """An image."""

    type: Literal["image"]
    source: Annotated[
        Annotated[Base64Source, Tag("Kind:base64")] | Annotated[UrlSource, Tag("Kind:url")],
        type_discriminator("an image source", "base64", "url"),
    ]


class TextSource(_Source):
    """A document's text."""

    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str


PageBlock: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("Kind:text")] | Annotated[ImageBlock, Tag("Kind:image")],
    type_discriminator("a block of a document", "text", "image"),
]


class ContentSource(_Source):
    """A document of text and images."""

    type: Literal["content"]
    content: str | Annotated[list[PageBlock], Field(fail_fast=True)]


class NoCitations(_Source):
    """The switch of citations, which there are none of here."""

    enabled: Literal[False] = False


class DocumentBlock(Block):
    """A document: text, or text and images; PDFs are not read here."""

    type: Literal["document"]
    source: Annotated[
        Annotated[TextSource, Tag("Kind:text")] | Annotated[ContentSource, Tag("Kind:content")],
        type_discriminator(
            "a document (PDFs are sent as images of their pages)", "text", "content"
        ),
    ]
    title: str | None = None
    context: str | None = None
    citations: NoCitations | None = None


ContentBlock: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("Kind:text")]
    | Annotated[ImageBlock, Tag("Kind:image")]
    | Annotated[DocumentBlock, Tag("Kind:document")]
    | Annotated[ThinkingBlock, Tag("Kind:thinking")]
    | Annotated[ToolUseBlock, Tag("Kind:tool_use")]
    | Annotated[ToolResultBlock, Tag("Kind:tool_result")],
    type_discriminator(
        "a block", "text", "image", "document", "thinking", "tool_use", "tool_result"
    ),
]
