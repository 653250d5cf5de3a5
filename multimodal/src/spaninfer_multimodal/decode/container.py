"""Files that FFmpeg demuxes, opened with one named demuxer and a short list of codecs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Final

import av
import av.container
import av.error
import av.stream

from spaninfer_multimodal.errors import TooLarge, Unreadable
from spaninfer_multimodal.sniff import Format, Kind

VIDEO_CODECS: Final = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "libdav1d"})
AUDIO_CODECS: Final = frozenset(
    {"mp3", "mp3float", "flac", "vorbis", "opus", "libopus", "aac"}
    | {f"pcm_{kind}le" for kind in ("s16", "s24", "s32", "f32", "f64")}
    | {f"pcm_{kind}be" for kind in ("s16", "s24", "s32", "f32", "f64")}
    | {"pcm_u8", "pcm_s8", "pcm_alaw", "pcm_mulaw"}
)  # fmt: skip

_OPTIONS: Final = {
    "codec_whitelist": ",".join(sorted(VIDEO_CODECS | AUDIO_CODECS)),
    "protocol_whitelist": "none",  # a file that names others reads none of them
}


@contextmanager
def open_container(
    data: bytes, format: Format, kind: Kind
) -> Iterator[av.container.InputContainer]:
    """Open a media file; errors of FFmpeg inside become Unreadable or TooLarge."""
    try:
        with av.open(
            BytesIO(data), "r", format.reader, options=_OPTIONS, metadata_errors="replace"
        ) as container:
            yield container
    except MemoryError as error:
        raise TooLarge(f"the {kind.value} needs more memory than decoding may take") from error
    except av.error.FFmpegError as error:
        raise Unreadable(f"the {format.name} {kind.value} is damaged: {error.strerror}") from error


def check_codec(stream: av.stream.Stream, kind: Kind) -> None:
    """Raise Unreadable for a codec that is not decoded."""
    codecs = VIDEO_CODECS if kind is Kind.VIDEO else AUDIO_CODECS
    name = stream.codec_context.name if stream.codec_context else None
    if name not in codecs:
        raise Unreadable(
            f"the {kind.value} is coded as {name or 'an unknown codec'}, which is not decoded; "
            f"decoded are {', '.join(sorted(codecs))}"
        )
