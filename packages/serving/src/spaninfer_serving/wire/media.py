"""Parts of a message that are images, videos or audio, as OpenAI's clients send them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast

from pydantic import AfterValidator, Field, Tag

from spaninfer_serving.wire.fields import ObjectFields, type_discriminator

Kind = Literal["image", "video", "audio"]
Detail = Literal["auto", "low", "high", "original"]


class _Part(ObjectFields):
    prompt_cache_breakpoint: dict[str, Any] | None = None  # here every prefix is cached


class TextPart(_Part):
    """One piece of a message's text."""

    type: Literal["text"]
    text: str


class MediaUrl(ObjectFields):
    """The location of media: a data: URL, or what the server's operator has opened."""

    url: str


class ImageUrl(MediaUrl):
    """The location of an image, and the detail at which it is seen."""

    detail: Detail | None = None


class ImagePart(_Part):
    """An image."""

    type: Literal["image_url"]
    image_url: ImageUrl


class VideoPart(_Part):
    """A video, of which the model sees some frames."""

    type: Literal["video_url"]
    video_url: MediaUrl


class InputAudio(ObjectFields):
    """An audio clip in base64; its format is known by its first bytes."""

    data: str
    format: str | None = None


class AudioPart(_Part):
    """An audio clip."""

    type: Literal["input_audio"]
    input_audio: InputAudio


def _check_kind(url: str) -> str:
    if kind_of_data(url) not in ("image", "video", "audio"):
        raise ValueError(
            "should be a data: URL of type image/*, video/* or audio/*; its type is "
            f"{url[:40].partition(';')[0]!r}"
        )
    return url


DataUrl: TypeAlias = Annotated[str, AfterValidator(_check_kind)]
"""A data: URL of an image, a video or an audio clip."""


class File(ObjectFields):
    """An image, video or audio clip as a data: URL, whose media type says which it is."""

    not_supported: ClassVar = {"file_id": (None,)}

    file_data: DataUrl
    filename: str | None = None


class FilePart(_Part):
    """A file with an image, video or audio clip."""

    type: Literal["file"]
    file: File


MEDIA_PARTS = (ImagePart, VideoPart, AudioPart, FilePart)
MediaPart: TypeAlias = ImagePart | VideoPart | AudioPart | FilePart

Part: TypeAlias = Annotated[
    Annotated[TextPart, Tag("Kind:text")]
    | Annotated[ImagePart, Tag("Kind:image_url")]
    | Annotated[VideoPart, Tag("Kind:video_url")]
    | Annotated[AudioPart, Tag("Kind:input_audio")]
    | Annotated[FilePart, Tag("Kind:file")],
    type_discriminator("a part", "text", "image_url", "video_url", "input_audio", "file"),
]


class ProcessorOptions(ObjectFields):
    """Preprocessing options of a request's images and videos (mm_processor_kwargs)."""

    min_pixels: Annotated[int, Field(ge=1)] | None = None
    max_pixels: Annotated[int, Field(ge=1)] | None = None
    fps: Annotated[float, Field(gt=0)] | None = None
    num_frames: Annotated[int, Field(ge=1)] | None = None

    def of(self, kind: str) -> dict[str, Any]:
        """Return the options for media of a kind."""
        names = {"image": ("min_pixels", "max_pixels"), "audio": ()}
        asked = self.model_dump(exclude_none=True)
        return {name: asked[name] for name in names.get(kind, tuple(asked)) if name in asked}


def source_of(part: MediaPart) -> tuple[Kind, str]:
    """Return the kind of a part's media, and the URL where they are."""
    match part:
        case ImagePart():
            return "image", part.image_url.url
        case VideoPart():
            return "video", part.video_url.url
        case AudioPart():
            return "audio", f"data:audio;base64,{part.input_audio.data}"
        case FilePart():
            return cast(Kind, kind_of_data(part.file.file_data)), part.file.file_data


def detail_of(part: MediaPart) -> Detail | None:
    """Return how closely an image is looked at, where a part says so."""
    return part.image_url.detail if isinstance(part, ImagePart) else None


def kind_of_data(url: str) -> str:
    """Return the first half of the media type that a data: URL declares."""
    return url[:64].partition("/")[0].lower().removeprefix("data:")
