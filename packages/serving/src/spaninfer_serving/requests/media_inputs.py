"""The media of chat requests: read under the operator's limits, off the event loop.

Nothing is fetched and no file is read unless the settings open it; data: URLs are always read.
Decoding runs in processes of its own (spaninfer_multimodal.DecodePool), which start with the first
media and end with the server.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from spaninfer_engine import InvalidMedia
from spaninfer_engine.serving import Frontend, MediaKind

from spaninfer_serving.error_mapping import busy
from spaninfer_serving.settings import Settings
from spaninfer_serving.wire.chat import SeenConversation
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.media import MediaPart, detail_of, source_of
from spaninfer_serving.wire.tokenize import MediaTokens

if TYPE_CHECKING:
    from spaninfer_engine.serving import MediaProcessor
    from spaninfer_multimodal import AudioJob, DecodePool, ImageJob, MediaReader, VideoJob

    Job: TypeAlias = ImageJob | VideoJob | AudioJob

LOW_DETAIL_PIXELS = 512 * 512
"""Of an image with "detail": "low": the size to which OpenAI scales such images."""

IN_PLACE_BYTES = 1 << 20  # of a file whose digest the event loop takes itself: 0.5 ms

Place = tuple[int, int]
"""A message's number, and a part's number in its content."""


@dataclass(frozen=True, slots=True)
class ReadPart:
    """A decoded part, as the engine takes it, and the bytes that it holds in memory."""

    part: Mapping[str, Any]
    num_bytes: int


def name_of(place: Place) -> str:
    """Return a part's place as errors and answers write it."""
    return f"messages[{place[0]}].content[{place[1]}]"


ReadMedia: TypeAlias = Mapping[Place, ReadPart]
"""The media of a request."""


class MediaInputs:
    """Reads the media of requests, for the tasks of one event loop."""

    def __init__(self, engine: Frontend, settings: Settings) -> None:
        self._engine, self._settings = engine, settings
        self._opening = Lock()
        self._pool: DecodePool | None = None
        self._reader: MediaReader | None = None
        self._made: MediaProcessor | None = None

    async def read(self, body: SeenConversation, tenant: str) -> dict[Place, ReadPart]:
        """Return the media of a tenant's request; raises Problem or InvalidMedia, which name the
        part.
        """
        parts = body.media()
        most = self._settings.max_media
        if len(parts) > most:
            raise Problem(
                400,
                f"messages hold {len(parts)} images, videos and clips; this server takes {most} "
                "in a request (--max-media)",
                param="messages",
                code="too_many_media",
            )
        kinds = Counter(source_of(part)[0] for part in parts.values())
        read = await asyncio.gather(
            *(self._read(place, part, body, tenant, kinds) for place, part in parts.items()),
            return_exceptions=True,
        )
        found: dict[Place, ReadPart] = {}
        for place, each in zip(parts, read, strict=True):
            if isinstance(each, BaseException):
                raise each
            found[place] = each
        return found

    def close(self) -> None:
        """End the processes that decode; idempotent."""
        with self._opening:
            if self._pool is not None:
                self._pool.close()

    async def _read(
        self,
        place: Place,
        part: MediaPart,
        body: SeenConversation,
        tenant: str,
        kinds: Counter[MediaKind],
    ) -> ReadPart:
        """Return a part as the engine takes it: prepared, if this tenant's file was before."""
        kind, url = source_of(part)
        name = name_of(place)
        processor = await self._processor(kind, name)
        options = _options(part, kind, body, processor.max_pixels(kind))
        from spaninfer_multimodal import Busy, MediaError

        reader, job = await self._opened_reader(), _job(kind, processor, options)
        is_inline = url[:5].lower() == "data:"
        try:
            file = url if is_inline else await reader.read_bytes(url, job.limits.max_bytes)
            if len(file) <= IN_PLACE_BYTES:
                digest = processor.digests.of(kind, file, options, tenant)
            else:
                digest = await asyncio.to_thread(processor.digests.of, kind, file, options, tenant)
            known = processor.known_of(digest, is_alone=kinds[kind] == 1)
            if known is not None:
                return ReadPart({"type": kind, kind: known, **options}, 0)
            if isinstance(file, str):
                file = await reader.read_bytes(url, job.limits.max_bytes)
            media = await reader.decode(file, job)
        except Busy as full:
            raise busy(f"{name}: {full}") from full
        except MediaError as refused:
            raise InvalidMedia(name, f"cannot be read: {refused}") from refused
        source = processor.as_source(media, digest)
        return ReadPart({"type": kind, kind: source, **options}, media.num_bytes)

    async def _processor(self, kind: MediaKind, name: str) -> MediaProcessor:
        """Return what prepares media; InvalidMedia where the model takes none of this kind."""
        if not self._engine.takes_media:
            model = self._engine.resolved.architecture
            raise InvalidMedia(name, f"is of kind {kind}; this model ({model}) reads text alone")
        if self._made is None:
            self._made = await asyncio.to_thread(lambda: self._engine.media_processor)
        assert self._made is not None, "the model takes media"
        if kind not in self._made.kinds:
            able = ", ".join(sorted(self._made.kinds))
            raise InvalidMedia(name, f"is of kind {kind}; this model takes {able}")
        return self._made

    async def _opened_reader(self) -> MediaReader:
        if self._reader is not None:
            return self._reader
        return await asyncio.to_thread(self._open)

    def _open(self) -> MediaReader:
        """Return what reads, made at the first call."""
        from spaninfer_multimodal import DecodePool, FetchPolicy, MediaReader, SourcePolicy

        with self._opening:
            if self._reader is None:
                settings = self._settings
                hosts = frozenset(settings.media_hosts) or None
                fetch = FetchPolicy(allowed_hosts=hosts) if settings.media_fetch else None
                self._pool = DecodePool(settings.media_workers)
                policy = SourcePolicy(fetch, settings.media_folder)
                self._reader = MediaReader(self._pool, policy)
            return self._reader


def _job(kind: MediaKind, processor: MediaProcessor, options: Mapping[str, Any]) -> Job:
    """Return how a part is decoded."""
    from spaninfer_multimodal import AudioJob, ImageJob, VideoJob

    match kind:
        case "image":
            return ImageJob()
        case "video":
            return VideoJob(processor.sampling(options))
        case "audio":
            return AudioJob()


def _options(
    part: MediaPart, kind: MediaKind, body: SeenConversation, largest: int | None
) -> dict[str, Any]:
    """Return how a part is prepared; Problem for more pixels than the model's own limit.

    Memory and time of strangers' pictures are bounded by the model's settings, not by theirs.
    """
    options = body.mm_processor_kwargs.of(kind) if body.mm_processor_kwargs else {}
    asked = options.get("max_pixels")
    if asked is not None and largest is not None and asked > largest:
        raise Problem(
            400,
            f"mm_processor_kwargs.max_pixels is {asked}; allowed for {kind} is up to {largest}, "
            "which is the model's own",
            param="mm_processor_kwargs.max_pixels",
        )
    if detail_of(part) == "low" and asked is None and largest is not None:
        options["max_pixels"] = min(LOW_DETAIL_PIXELS, largest)
    return options


def token_counts(items: Sequence[Any]) -> dict[str, int]:
    """Return how many tokens of a prompt stand for media, as `usage` names them."""
    counts: dict[str, int] = {}
    for item in items:
        name = f"{item.input.kind}_tokens"
        counts[name] = counts.get(name, 0) + item.input.num_tokens
    return counts


def media_tokens(places: Iterable[Place], items: Sequence[Any]) -> list[MediaTokens]:
    """Return how many tokens of a prompt stand for each medium; both are in order."""
    return [
        MediaTokens(part=name_of(place), kind=item.input.kind, count=item.input.num_tokens)
        for place, item in zip(places, items, strict=True)
    ]
