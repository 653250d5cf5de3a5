"""Conventions of model families for media in prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spaninfer_engine.request.media import MediaKind


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLayout:
    """The tokens of media in a prompt, and how their positions are counted."""

    placeholders: Mapping[MediaKind, int]  # the template's token for one, and each row's
    merge: int = 2  # patches along a side of the picture that become one token
    has_mrope: bool = False  # positions in time, height and width?
    tokens_per_second: float | None = None  # M-RoPE steps of videos; None: one per grid row
    frame_marks: tuple[int, int] | None = None  # frames stand alone, behind their time, between
    image_marks: tuple[int, int] | None = None  # the template writes the first for an image
    around: str = ""  # text around both
    written: str = ""  # the template's text for an image; empty: that of its placeholder
    replaced_marks: tuple[int, int] | None = None  # rows of a clip replace these around it, too
    bidirectional: bool = False  # tokens of an image see each other


@dataclass(frozen=True, slots=True)
class MediaSetup:
    """A model's processors and its conventions for media in prompts."""

    folder: Path
    layout: MediaLayout
