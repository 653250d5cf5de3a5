"""Blocks of a message in Anthropic's Messages API, as they travel in requests."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, Tag
from pydantic_core import PydanticKnownError

from spaninfer_serving.wire.fields import ObjectFields, type_discriminator


class CacheControl(ObjectFields):
    """A cache breakpoint of Anthropic's API; here every prefix is cached, so it changes nothing."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(ObjectFields):
    """An object that may end a prefix which is to be cached."""

    cache_control: CacheControl | None = None


class TextBlock(Block):
    """A piece of text."""

    type: Literal["text"]
    text: str
    citations: Annotated[list[Any], Field(max_length=0)] | None = None


class ThinkingBlock(ObjectFields):
    """The reasoning of an answer, sent back; there are no signatures here."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ToolUseBlock(Block):
    """A call that the model has made."""

    not_supported: ClassVar = {"caller": (None, {"type": "direct"}), "toolset_name": (None,)}

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class Base64Source(ObjectFields):
    """The bytes of an image; its format is known by its first bytes."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class UrlSource(ObjectFields):
    """The URL of an image: a data: URL, or what the server's operator has opened."""

    type: Literal["url"]
    url: str


class ImageBlock(Block):
    """An image."""

    not_supported: ClassVar = {"transformations": (None, {}, {"oversized_image": "downsize"})}

    type: Literal["image"]
    source: Annotated[
        Annotated[Base64Source, Tag("Kind:base64")] | Annotated[UrlSource, Tag("Kind:url")],
        type_discriminator("an image source", "base64", "url"),
    ]


class TextSource(ObjectFields):
    """A document's text."""

    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str


PageBlock: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("Kind:text")] | Annotated[ImageBlock, Tag("Kind:image")],
    type_discriminator("a block of a document", "text", "image"),
]


class ContentSource(ObjectFields):
    """A document of text and images."""

    type: Literal["content"]
    content: str | Annotated[list[PageBlock], Field(fail_fast=True)]


def _a_boolean(given: object) -> object:
    """Refuse 0, which a literal False would take: they are equal."""
    if not isinstance(given, bool):
        raise PydanticKnownError("bool_type")
    return given


class NoCitations(ObjectFields):
    """The switch of citations, which there are none of here."""

    enabled: Annotated[Literal[False], BeforeValidator(_a_boolean)] = False


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


ResultBlock: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("Kind:text")]
    | Annotated[ImageBlock, Tag("Kind:image")]
    | Annotated[DocumentBlock, Tag("Kind:document")],
    type_discriminator("a block of a result", "text", "image", "document"),
]


class ToolResultBlock(Block):
    """The result of a call."""

    not_supported: ClassVar = {"toolset_name": (None,)}

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[ResultBlock], Field(fail_fast=True)] = ""
    is_error: bool = False


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
