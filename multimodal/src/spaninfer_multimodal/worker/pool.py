"""A bounded pool of decoder processes with futures."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self, overload

from spaninfer_multimodal.errors import Busy
from spaninfer_multimodal.media import Audio, Image, Video
from spaninfer_multimodal.worker.jobs import AudioJob, ImageJob, Job, Media, VideoJob
from spaninfer_multimodal.worker.process import DecoderProcess, ProcessLimits


class DecodePool:
    """Decodes in processes that can be killed, so that no file can stall or crash the caller.

    At most `num_workers` jobs run at a time and `max_waiting` wait; more are refused with Busy.
    Processes start with the first jobs and stay. Thread-safe; `close()` it, or use `with`.
    """

    def __init__(
        self,
        num_workers: int = 2,
        *,
        max_waiting: int = 64,
        limits: ProcessLimits | None = None,
    ) -> None:
        self._threads = ThreadPoolExecutor(num_workers, "decode")
        self._free = threading.Semaphore(num_workers + max_waiting)
        self._max_waiting = max_waiting
        self._processes: queue.LifoQueue[DecoderProcess] = queue.LifoQueue()
        for _ in range(num_workers):
            self._processes.put(DecoderProcess(limits or ProcessLimits()))

    @overload
    def submit(self, data: bytes, job: ImageJob) -> Future[Image]: ...
    @overload
    def submit(self, data: bytes, job: VideoJob) -> Future[Video]: ...
    @overload
    def submit(self, data: bytes, job: AudioJob) -> Future[Audio]: ...
    def submit(
        self, data: bytes, job: Job
    ) -> Future[Image] | Future[Video] | Future[Audio] | Future[Media]:
        """Queue a job; the future holds its result or a MediaError. Raises Busy."""
        if not self._free.acquire(blocking=False):
            raise Busy(f"{self._max_waiting} media are waiting for a decoder: try again later")
        future = self._threads.submit(self._run, data, job)
        future.add_done_callback(lambda _: self._free.release())
        return future

    def close(self) -> None:
        """Cancel waiting jobs, finish running ones, and end the processes; idempotent."""
        self._threads.shutdown(cancel_futures=True)
        while not self._processes.empty():
            self._processes.get().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, data: bytes, job: Job) -> Media:
        """Run a job in a free process; there are as many as threads."""
        process = self._processes.get()
        try:
            return process.run(data, job)
        finally:
            self._processes.put(process)
