"""Media as callers give them: files, bytes, arrays, pictures of Pillow.

Nothing is fetched, and files are the caller's own: a server reads with limits of its own
(spaninfer_multimodal.MediaReader) and gives what it has read.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow
from spaninfer_multimodal import (
    Audio,
    FrameSampling,
    Image,
    MediaError,
    Video,
    decode_audio,
    decode_image,
    decode_video,
)

from spaninfer_engine.errors import InvalidMedia, shown
from spaninfer_engine.preprocess.parts import MediaPart

_ALLOWED = {
    "image": "a path, bytes, a picture of Pillow, or uint8 [height, width, 3]",
    "video": "a path, bytes, or a spaninfer_multimodal.Video",
    "audio": "a path, bytes, or float32 samples at 16 kHz",
}


def media_in_memory(part: MediaPart) -> Image | Video | Audio | None:
    """Return a part's media where they are given decoded; None where they are a file or bytes."""
    match part.kind, part.source:
        case ("image", Image() as made) | ("video", Video() as made) | ("audio", Audio() as made):
            return made
        case "image", Pillow.Image() as picture:
            return Image(np.array(picture.convert("RGB")))
        case "image", np.ndarray(dtype=np.uint8, shape=(_, _, 3)) as pixels:
            return Image(pixels.copy())
        case "audio", np.ndarray(dtype=np.float32, shape=(_,)) as samples:
            return Audio(samples.copy())
    return None


def decoded(part: MediaPart, data: bytes, sampling: FrameSampling) -> Image | Video | Audio:
    """Return the media in a file, a video's frames as `sampling` has them; raises InvalidMedia."""
    try:
        match part.kind:
            case "image":
                return decode_image(data)
            case "video":
                return decode_video(data, sampling)
            case "audio":
                return decode_audio(data)
    except MediaError as refused:
        raise InvalidMedia(
            part.place, f"is no {part.kind} that can be read: {refused}"
        ) from refused


def bytes_of(part: MediaPart) -> bytes:
    """Return the file of a part; InvalidMedia where there is none."""
    source: Any = part.source
    if isinstance(source, bytes | bytearray):
        return bytes(source)
    if not isinstance(source, str | PathLike):
        allowed = _ALLOWED[part.kind]
        raise InvalidMedia(
            part.place, f"has {shown(source)} as its {part.kind}; allowed is {allowed}"
        )
    if isinstance(source, str) and source.partition(":")[0] in ("http", "https", "data"):
        raise InvalidMedia(
            part.place,
            f"names {shown(source)}; the engine reads files and bytes, and fetches nothing: read "
            "the URL yourself, or send it to a server that was started with --media-fetch",
        )
    try:
        return Path(source).read_bytes()
    except OSError as reason:
        raise InvalidMedia(part.place, f"cannot be read: {reason}") from reason
