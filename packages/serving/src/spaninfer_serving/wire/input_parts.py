"""Parts of a message in OpenAI's Responses API, as they travel."""

from __future__ import annotations

from mimetypes import guess_type
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    Field,
    Tag,
    field_validator,
    model_validator,
)

from spaninfer_serving.wire.fields import ObjectFields, type_discriminator
from spaninfer_serving.wire.media import DataUrl, Detail, InputAudio


class _Part(ObjectFields):
    prompt_cache_breakpoint: dict[str, Any] | None = None  # here every prefix is cached


class InputText(_Part):
    """A piece of a message's text; what an answer repeats beside it holds nothing here."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: Annotated[list[Any], Field(max_length=0)] | None = None


class _Source(_Part):
    file_id: None = None
    detail: Detail | None = None

    @field_validator("file_id", mode="before")
    @classmethod
    def _refuse_id(cls, file_id: object) -> None:
        if file_id is not None:
            raise ValueError("names a stored file, and this server stores none; send a URL")


class InputImage(_Source):
    """An image: a data: URL, or what the server's operator has opened."""

    type: Literal["input_image"]
    image_url: str


class InputFile(_Source):
    """An image, video or clip as a data: URL, or the URL of an image or video."""

    type: Literal["input_file"]
    file_data: DataUrl | None = None
    file_url: str | None = None
    filename: str | None = None

    @field_validator("file_url")
    @classmethod
    def _check_kind(cls, url: str | None) -> str | None:
        if url is not None and kind_at(url) not in ("image", "video"):
            raise ValueError(
                "should end like the name of an image or a video; others are sent as file_data, "
                "a data: URL"
            )
        return url

    @model_validator(mode="after")
    def _has_one_source(self) -> InputFile:
        if (self.file_data is None) == (self.file_url is None):
            raise ValueError("should have file_data or file_url, and not both")
        return self


class InputClip(_Part):
    """An audio clip."""

    type: Literal["input_audio"]
    input_audio: InputAudio


InputPart: TypeAlias = Annotated[
    Annotated[InputText, Tag("Kind:input_text")]
    | Annotated[InputText, Tag("Kind:output_text")]
    | Annotated[InputText, Tag("Kind:text")]
    | Annotated[InputImage, Tag("Kind:input_image")]
    | Annotated[InputFile, Tag("Kind:input_file")]
    | Annotated[InputClip, Tag("Kind:input_audio")],
    type_discriminator(
        "a part", "input_text", "input_image", "input_file", "input_audio", "output_text", "text"
    ),
]

InputParts: TypeAlias = str | Annotated[list[InputPart], Field(fail_fast=True)]


def kind_at(url: str) -> str:
    """Return the kind of media that the last name in a URL's path stands for; empty: unknown."""
    return (guess_type(urlsplit(url).path)[0] or "").partition("/")[0]
