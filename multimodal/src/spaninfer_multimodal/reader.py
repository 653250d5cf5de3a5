"""Reading of media: fetched under the operator's policy, decoded in other processes."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any, overload

from spaninfer_multimodal.errors import Forbidden
from spaninfer_multimodal.media import Audio, Image, Video
from spaninfer_multimodal.source.data_url import read_data_url
from spaninfer_multimodal.source.fetch import Resolver, fetch
from spaninfer_multimodal.source.local import read_file
from spaninfer_multimodal.source.policy import SourcePolicy
from spaninfer_multimodal.worker.jobs import AudioJob, ImageJob, Job, VideoJob
from spaninfer_multimodal.worker.pool import DecodePool


class MediaReader:
    """Reads media from URLs, for one event loop, which it never blocks.

    The reader uses `pool` and leaves it open. At most `max_fetches` downloads run at a time, so
    that no more than that many bodies are in memory before they are decoded.
    """

    def __init__(
        self,
        pool: DecodePool,
        policy: SourcePolicy | None = None,
        *,
        max_fetches: int = 16,
        resolver: Resolver | None = None,
    ) -> None:
        self._pool = pool
        self._policy = policy or SourcePolicy()
        self._fetches = asyncio.Semaphore(max_fetches)
        self._resolver = resolver

    @overload
    async def read(self, source: str, job: ImageJob) -> Image: ...
    @overload
    async def read(self, source: str, job: VideoJob) -> Video: ...
    @overload
    async def read(self, source: str, job: AudioJob) -> Audio: ...
    async def read(self, source: str, job: Job) -> Image | Video | Audio:
        """Return the media at `source`, a data:, https:, http: or file: URL; raises MediaError."""
        return await self.decode(await self.read_bytes(source, job.limits.max_bytes), job)

    async def decode(self, data: bytes, job: Job) -> Image | Video | Audio:
        """Return the media in `data`, decoded in another process; raises MediaError."""
        future: Future[Any] = self._pool.submit(data, job)
        media: Image | Video | Audio = await asyncio.wrap_future(future)
        return media

    async def read_bytes(self, source: str, max_bytes: int) -> bytes:
        """Return the bytes at `source`, undecoded, at most `max_bytes`; raises MediaError."""
        scheme = source[:16].partition(":")[0].lower()
        if scheme == "data":
            return await asyncio.to_thread(read_data_url, source, max_bytes)
        if scheme == "file" and self._policy.folder is not None:
            return await asyncio.to_thread(read_file, source, self._policy.folder, max_bytes)
        if scheme in ("http", "https") and self._policy.fetch is not None:
            async with self._fetches:
                return await fetch(source, max_bytes, self._policy.fetch, resolver=self._resolver)
        raise Forbidden(f"{source[:40]!r} is not fetched: send the media as a {self._open()}")

    def _open(self) -> str:
        """Return the sources that are open, for messages."""
        schemes = ["data:"]
        if self._policy.fetch is not None:
            schemes += ["https:", "http:"] if self._policy.fetch.allow_http else ["https:"]
        if self._policy.folder is not None:
            schemes.append("file:")
        return f"{' or '.join(schemes)} URL"
