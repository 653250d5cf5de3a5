"""The media parts of a conversation, apart from what its template renders; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast, get_args

from spaninfer_engine.errors import InvalidMedia, shown
from spaninfer_engine.request.media import MediaKind

KINDS: tuple[MediaKind, ...] = get_args(MediaKind)

OPTIONS: Mapping[MediaKind, frozenset[str]] = {
    "image": frozenset({"min_pixels", "max_pixels"}),
    "video": frozenset({"min_pixels", "max_pixels", "fps", "num_frames"}),
    "audio": frozenset(),
}
"""What a part may say about its preparation, beside its type and source."""


@dataclass(frozen=True, slots=True)
class MediaPart:
    """One image, video or clip of a conversation: {"type": "image", "image": source, options}."""

    kind: MediaKind
    source: Any
    place: str  # in the conversation, for messages: "messages[0].content[1]"
    options: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    is_alone: bool = True  # is it the conversation's only one of its kind?


def media_parts(messages: Sequence[Mapping[str, Any]]) -> list[MediaPart]:
    """Return the media of a conversation in order; InvalidMedia for parts that make no sense."""
    parts = [
        _media_part(part, f"messages[{number}].content[{at}]")
        for number, message in enumerate(messages)
        for at, part in _media_of(message)
    ]
    counts = Counter(part.kind for part in parts)
    return [replace(part, is_alone=counts[part.kind] == 1) for part in parts]


def without_sources(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return a conversation as its template takes it: media parts say their kind alone."""
    return [_without_sources(message) for message in messages]


def _without_sources(message: Mapping[str, Any]) -> Mapping[str, Any]:
    bare = {at: {"type": part["type"], part["type"]: ""} for at, part in _media_of(message)}
    if not bare:
        return message
    content = [bare.get(at, part) for at, part in enumerate(message["content"])]
    return {**message, "content": content}


def _media_of(message: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the parts of a message that are media, and their numbers."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, list | tuple):
        for at, part in enumerate(content):
            if isinstance(part, Mapping) and part.get("type") in KINDS:
                yield at, part


def _media_part(part: Mapping[str, Any], place: str) -> MediaPart:
    kind = cast(MediaKind, part["type"])
    if kind not in part:
        raise InvalidMedia(place, f'has no {kind}; write {{"type": "{kind}", "{kind}": ...}}')
    options = {name: value for name, value in part.items() if name not in ("type", kind)}
    for name, value in options.items():
        if name not in OPTIONS[kind]:
            allowed = ", ".join(sorted(OPTIONS[kind])) or "none"
            raise InvalidMedia(place, f"has the option {name!r}; allowed for {kind} are {allowed}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise InvalidMedia(place, f"has {name} = {shown(value)}; allowed is a number above 0")
        if name != "fps" and value != int(value):
            raise InvalidMedia(place, f"has {name} = {shown(value)}; allowed is a whole number")
    return MediaPart(kind, part[kind], place, MappingProxyType(options))
