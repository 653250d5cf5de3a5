"""The media processor of a model: from parts of a conversation to a prompt with media."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Semaphore
from typing import Final

from spaninfer_multimodal import (
    AnyResProcessor,
    Audio,
    FixedProcessor,
    FrameSampling,
    Image,
    MediaError,
    Mel,
    Patches,
    PatchSettings,
    Processors,
    QwenVLProcessor,
    Tiles,
    Video,
    load_processors,
)

from spaninfer_engine.errors import ConfigError, InvalidMedia
from spaninfer_engine.preprocess.expand import expand_frames, expand_media, expand_runs, wrap_images
from spaninfer_engine.preprocess.known import Decoded, FileDigests, KnownMedia
from spaninfer_engine.preprocess.layout import MediaLayout, MediaSetup
from spaninfer_engine.preprocess.parts import MediaPart
from spaninfer_engine.preprocess.prepared import PreparedMedia, prepared
from spaninfer_engine.preprocess.read import bytes_of, decoded, media_in_memory
from spaninfer_engine.request.media import MediaKind
from spaninfer_engine.request.prompts import MediaPrompt
from spaninfer_engine.text.template import Prompt
from spaninfer_engine.text.tokenizer import Tokenizer

AT_ONCE: Final = 4
"""Threads that prepare media at a time, at most: more finish all of them later.

Of 32 that began together, each with a JPEG of 1024 x 1024, the first was done after 0.22 s, beside
an engine that had nothing to do until then (16 cores of a Xeon). Four prepare one in 12 ms.
"""


def open_processor(setup: MediaSetup, tokenizer: Tokenizer) -> MediaProcessor:
    """Return the processor of a model; ConfigError for a folder that describes none we know."""
    try:
        processors = load_processors(setup.folder)
    except MediaError as refused:
        raise ConfigError(f"the media of this model cannot be prepared: {refused}") from refused
    if isinstance(processors.vision, FixedProcessor) and processors.vision.pan_and_scan:
        raise ConfigError(
            "do_pan_and_scan is true in this model's files; crops of an image are not put into "
            "prompts yet: set it to false"
        )
    return MediaProcessor(processors, setup.layout, tokenizer)


class MediaProcessor:
    """Prepares media for the towers of one model, and puts them into its prompts."""

    def __init__(self, processors: Processors, layout: MediaLayout, tokenizer: Tokenizer) -> None:
        self._processors, self._layout, self._tokenizer = processors, layout, tokenizer
        self.known, self.digests = KnownMedia(), FileDigests()
        self._turns = Semaphore(AT_ONCE)

    @property
    def kinds(self) -> frozenset[MediaKind]:
        """The kinds of media that the model takes: image, video, audio."""
        return frozenset(self._layout.placeholders)

    def max_pixels(self, kind: MediaKind) -> int | None:
        """Return how many pixels of an image, or of a video's frame, the model sees unasked.

        None where a picture's sides alone decide its size.
        """
        vision = self._processors.vision
        if not isinstance(vision, QwenVLProcessor):
            return None
        return (vision.videos if kind == "video" else vision.images).max_pixels

    def sampling(self, options: Mapping[str, float]) -> FrameSampling:
        """Return which frames of a video the model sees, as a part's options want it."""
        vision = self._processors.vision
        made = FrameSampling()
        if isinstance(vision, QwenVLProcessor | AnyResProcessor):
            made = vision.sampling
        if "num_frames" in options:
            return replace(made, num_frames=int(options["num_frames"]))
        return replace(made, fps=options["fps"], num_frames=None) if "fps" in options else made

    def as_source(self, media: Image | Video | Audio, file_digest: bytes) -> Decoded:
        """Return media that were decoded elsewhere as a part of a conversation takes them."""
        return Decoded(media, file_digest)

    def prepare(self, part: MediaPart, tenant: str = "") -> PreparedMedia:
        """Read one part and prepare it for its tower; raises InvalidMedia, which names it.

        What is kept of it is found by requests of the same tenant alone.
        """
        if part.kind not in self._layout.placeholders:
            able = ", ".join(sorted(self._layout.placeholders))
            raise InvalidMedia(part.place, f"is of kind {part.kind}; this model takes {able}")
        match part.source:
            case PreparedMedia() as made:
                return made
            case Decoded(media, file_digest):
                return self._learned(file_digest, part, lambda: media)
        given = media_in_memory(part)
        if given is not None:
            with self._turns:
                return self._prepared(given, part)
        data = bytes_of(part)
        file_digest = self.digests.of(part.kind, data, part.options, tenant)
        if (known := self.known_of(file_digest, is_alone=part.is_alone)) is not None:
            return known
        sampling = self.sampling(part.options)
        return self._learned(file_digest, part, lambda: decoded(part, data, sampling))

    def _learned(
        self, file_digest: bytes, part: MediaPart, read: Callable[[], Image | Video | Audio]
    ) -> PreparedMedia:
        """Return media prepared, and keep them for the next request that shows the same file, be it
        one that waits for its turn.
        """
        with self._turns:
            if (known := self.known_of(file_digest, is_alone=part.is_alone)) is not None:
                return known
            made = self._prepared(read(), part)
            self.known.put(self._place(file_digest, is_alone=part.is_alone), made)
            return made

    def known_of(self, file_digest: bytes, *, is_alone: bool) -> PreparedMedia | None:
        """Return what was made of a file before, if it is kept.

        `is_alone`: it is the conversation's only one of its kind, as `MediaPart` says.
        """
        return self.known.get(self._place(file_digest, is_alone=is_alone))

    def _place(self, file_digest: bytes, *, is_alone: bool) -> bytes:
        """Return where a file is kept: of some models, a picture alone is prepared differently."""
        vision = self._processors.vision
        is_told = isinstance(vision, AnyResProcessor) and vision.squares_several
        return file_digest + b"alone" * (is_alone and is_told)

    def _prepared(self, media: Image | Video | Audio, part: MediaPart) -> PreparedMedia:
        try:
            return prepared(part.kind, self._features(media, part))
        except MediaError as refused:
            raise InvalidMedia(part.place, str(refused)) from refused

    def prompt(self, rendered: Prompt, media: Sequence[PreparedMedia]) -> MediaPrompt:
        """Return the prompt of a rendered conversation with these media, in their order."""
        layout = self._layout
        if layout.frame_marks is not None:
            times = [each.times_s for each in media if each.input.kind == "video"]
            rendered = expand_frames(rendered, self._texts("video", layout.frame_marks), times)
        if layout.image_marks is not None:
            marks = self._texts("image", layout.image_marks)
            rendered = wrap_images(rendered, marks, layout.around)
        around = [each.around for each in media if each.input.kind == "image"]
        if any(around):
            placeholder = self._text(layout.placeholders["image"])
            rendered = expand_runs(rendered, layout.written or placeholder, placeholder, around)
        token_ids = self._tokenizer.encode(
            rendered.text, add_special=False, parse_special=rendered.trusted
        )
        return expand_media(token_ids, media, self._layout)

    def _texts(self, kind: MediaKind, marks: tuple[int, int]) -> tuple[str, str, str]:
        """Return the texts in front of a placeholder, of itself, and behind it."""
        before, behind = map(self._text, marks)
        return before, self._text(self._layout.placeholders[kind]), behind

    def _text(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode()

    def _features(self, media: Image | Video | Audio, part: MediaPart) -> Patches | Tiles | Mel:
        match media, self._processors.vision, self._processors.audio:
            case Image() as image, QwenVLProcessor() as qwen, _:
                return replace(qwen, images=_with_budget(qwen.images, part)).image(image)
            case Image() as image, AnyResProcessor() as tiles, _:
                _refuse_sizes(part)
                if part.is_alone or not tiles.squares_several:
                    return tiles.image(image)
                return tiles.image_of_several(image)
            case Image() as image, vision, _ if vision is not None:
                _refuse_sizes(part)
                return vision.image(image)
            case Video() as video, AnyResProcessor() as tiles, _:
                _refuse_sizes(part)
                return tiles.video(video)
            case Video() as video, QwenVLProcessor() as qwen, _:
                return replace(qwen, videos=_with_budget(qwen.videos, part)).video(video)
            case Audio() as audio, _, whisper if whisper is not None:
                return whisper.audio(audio)
        raise InvalidMedia(
            part.place,
            f"is of kind {part.kind}; the model's folder has no processor for it",
        )


def _refuse_sizes(part: MediaPart) -> None:
    """Raise InvalidMedia for a part that asks for a size, of a model that has no budgets."""
    given = [name for name in ("max_pixels", "min_pixels") if name in part.options]
    if given:
        raise InvalidMedia(
            part.place,
            f"has {', '.join(given)}; this model has a size for every image: omit it",
        )


def _with_budget(settings: PatchSettings, part: MediaPart) -> PatchSettings:
    """Return settings with the pixels that a part asks for; InvalidMedia where none are between."""
    if part.options.keys().isdisjoint(("min_pixels", "max_pixels")):
        return settings  # what the model's files say is not the caller's fault
    made = replace(
        settings,
        min_pixels=int(part.options.get("min_pixels", settings.min_pixels)),
        max_pixels=int(part.options.get("max_pixels", settings.max_pixels)),
    )
    if made.min_pixels > made.max_pixels:
        raise InvalidMedia(
            part.place,
            f"has pixels from {made.min_pixels} to {made.max_pixels}: no size lies "
            "between them; give both min_pixels and max_pixels",
        )
    return made
