"""The format of some bytes, by their signature; a client's claims are ignored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from spaninfer_multimodal.errors import Unreadable


class Kind(Enum):
    """The kinds of media."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True)
class Format:
    """A format that is decoded: its name, its one reader, and the kinds of media it can hold.

    `reader` is Pillow's name of an image format, or FFmpeg's name of a demuxer. No other reader
    is ever tried: playlists and concat scripts, which name further files, are never opened.
    """

    name: str
    reader: str
    kinds: frozenset[Kind]


_IMAGE = frozenset({Kind.IMAGE})
_ANIMATED = frozenset({Kind.IMAGE, Kind.VIDEO})
_VIDEO = frozenset({Kind.VIDEO, Kind.AUDIO})
_AUDIO = frozenset({Kind.AUDIO})

PNG: Final = Format("PNG", "PNG", _ANIMATED)
JPEG: Final = Format("JPEG", "JPEG", _IMAGE)
WEBP: Final = Format("WebP", "WEBP", _ANIMATED)
GIF: Final = Format("GIF", "GIF", _ANIMATED)
AVIF: Final = Format("AVIF", "AVIF", _ANIMATED)
TIFF: Final = Format("TIFF", "TIFF", _IMAGE)
BMP: Final = Format("BMP", "BMP", _IMAGE)
MP4: Final = Format("MP4", "mov", _VIDEO)
MATROSKA: Final = Format("WebM", "matroska", _VIDEO)
AVI: Final = Format("AVI", "avi", _VIDEO)
WAV: Final = Format("WAV", "wav", _AUDIO)
MP3: Final = Format("MP3", "mp3", _AUDIO)
FLAC: Final = Format("FLAC", "flac", _AUDIO)
OGG: Final = Format("OGG", "ogg", _AUDIO)
AAC: Final = Format("AAC", "aac", _AUDIO)

FORMATS: Final = (
    PNG, JPEG, WEBP, GIF, AVIF, TIFF, BMP, MP4, MATROSKA, AVI, WAV, MP3, FLAC, OGG, AAC,
)  # fmt: skip

_SIGNATURES: Final[tuple[tuple[bytes, Format], ...]] = (
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"\xff\xd8\xff", JPEG),
    (b"GIF87a", GIF),
    (b"GIF89a", GIF),
    (b"II*\0", TIFF),
    (b"MM\0*", TIFF),
    (b"BM", BMP),
    (b"\x1aE\xdf\xa3", MATROSKA),
    (b"fLaC", FLAC),
    (b"OggS", OGG),
    (b"ID3", MP3),
)

_RIFF: Final = {b"WEBP": WEBP, b"WAVE": WAV, b"AVI ": AVI}

_BOXES: Final = (b"moov", b"mdat", b"wide", b"free", b"skip")
"""First boxes of QuickTime files from before `ftyp`."""

_REFUSED: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\1\0", "ICO"),
    (b"8BPS", "Photoshop"),
    (b"qoif", "QOI"),
    (b"%PDF", "PDF"),
    (b"%!PS", "PostScript"),
    (b"\x1f\x8b", "gzip"),
    (b"PK\3\4", "ZIP"),
    (b"FLV\1", "FLV"),
    (b"#EXTM3U", "an HLS playlist"),
    (b"ffconcat", "an FFmpeg concat script"),
)


def sniff(data: bytes, kind: Kind) -> Format:
    """Return the format of `data`, which must be able to hold media of `kind`; else Unreadable."""
    if not data:
        raise Unreadable(f"the {kind.value} is empty: 0 bytes")
    found = _find(data)
    if found is None:
        raise Unreadable(f"the data is {_describe(data)}, not {accepted(kind)}")
    if kind not in found.kinds:
        raise Unreadable(f"the data is {found.name}, which holds no {kind.value}: {accepted(kind)}")
    return found


def accepted(kind: Kind) -> str:
    """Return the names of the formats of one kind, for messages."""
    names = [format.name for format in FORMATS if kind in format.kinds]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _find(data: bytes) -> Format | None:
    """Return the format whose signature `data` begins with."""
    for signature, format in _SIGNATURES:
        if data.startswith(signature):
            return format
    if data[:4] in (b"RIFF", b"RF64"):
        return _RIFF.get(data[8:12])
    if data[4:8] == b"ftyp":
        return _of_brand(data[8:12])
    if data[4:8] in _BOXES:
        return MP4
    return _of_sync(data)


def _of_brand(brand: bytes) -> Format | None:
    """Return the format of an ISO base media file by its major brand."""
    if brand in (b"avif", b"avis"):
        return AVIF
    return None if brand in (b"heic", b"heix", b"hevc", b"mif1", b"msf1", b"jp2 ") else MP4


def _of_sync(data: bytes) -> Format | None:
    """Return MP3 or AAC (ADTS) by the synchronisation word of their frames."""
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        return None
    layer = data[1] & 0x06
    if layer == 0:
        return AAC if data[1] & 0xF0 == 0xF0 else None
    return MP3 if data[2] & 0xF0 != 0xF0 else None


def _describe(data: bytes) -> str:
    """Return a description of `data`, for the message that refuses it."""
    for signature, name in _REFUSED:
        if data.startswith(signature):
            return f"{name}, which is not decoded"
    start = data[:256].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "an HTML page"
    if start.startswith((b"<?xml", b"<svg")):
        return "SVG or other XML, which is not decoded"
    if data[4:8] == b"ftyp" and data[8:11] in (b"hei", b"hev", b"mif", b"msf"):
        return "HEIC, which is not decoded"
    return "of an unknown format"
