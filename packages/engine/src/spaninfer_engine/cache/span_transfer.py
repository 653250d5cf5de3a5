"""The thread that moves spans between slots of host memory and files.

Jobs are done in order. What became of them comes back as `Done`, which the engine's loop takes when
it likes; `wake` tells it that a read has ended, for which it may be waiting, or all jobs have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import NamedTuple

from spaninfer_engine.cache.span_files import Bytes, DamagedSpan, SpanFiles, SpanKey
from spaninfer_engine.resource import Resource

CLOSE_S = 2.0  # spans that are not written by then are computed again some day

_log = logging.getLogger(__name__)


class Transfer(Enum):
    """Kinds of jobs."""

    WRITE = "write"
    READ = "read"
    RENEW = "renew"
    REMOVE = "remove"


class Job(NamedTuple):
    """A span to write from its slot, to read into it, to note the use of, or to remove."""

    kind: Transfer
    key: SpanKey
    slot: int = -1  # none, where a file is renewed or removed


class Done(NamedTuple):
    """A job that was done, or not (`num_bytes` is None)."""

    job: Job
    num_bytes: int | None


class SpanTransfer(Resource):
    """Moves spans in a thread of its own, which ends with `close`.

    `slots` are the host slots of each cache group, as bytes. An error of the file system while
    writing, such as a full disk, is logged once and ends writing; reading goes on.
    """

    def __init__(self, files: SpanFiles, slots: Sequence[Bytes]) -> None:
        self._files, self._slots = files, slots
        self._jobs: SimpleQueue[tuple[Job, Callable[[], None]] | None] = SimpleQueue()
        self._done: SimpleQueue[Done] = SimpleQueue()
        self._wake: Callable[[], None] = _without_loop
        self._may_write = True
        self._stop_at: float | None = None
        self._thread = Thread(target=self._work, name="spaninfer-spans", daemon=True)
        self._thread.start()

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Call this, in the transfer's thread, when a read has ended, or all jobs have."""
        self._wake = wake

    def submit(self, job: Job, ready: Callable[[], None]) -> None:
        """Let a job wait for its turn; `ready` waits for the copies that it depends on."""
        self._jobs.put((job, ready))

    def take_done(self) -> Iterator[Done]:
        """Yield the jobs that were done since the last call, in order."""
        while True:
            try:
                yield self._done.get_nowait()
            except Empty:
                return

    def close(self) -> None:
        """Finish what is waiting, for two seconds at the most, and end the thread; idempotent.

        A thread whose file system hangs for as long again is left to itself.
        """
        self._stop_at = monotonic() + CLOSE_S
        self._jobs.put(None)
        self._thread.join(2 * CLOSE_S)

    def _work(self) -> None:
        while (waiting := self._jobs.get()) is not None:
            if self._stop_at is not None and monotonic() > self._stop_at:
                return
            job, ready = waiting
            self._done.put(Done(job, self._do(job, ready)))
            if job.kind is Transfer.READ or self._jobs.empty():
                self._wake()

    def _do(self, job: Job, ready: Callable[[], None]) -> int | None:
        try:
            ready()
            return self._move(job)
        except DamagedSpan as damaged:
            _log.warning("%s", damaged)
        except OSError as error:
            self._tell(job, error)
        except Exception:  # whatever happens here, the loop gets an outcome of the job: a miss
            _log.exception("a span was not transferred")
        return None

    def _move(self, job: Job) -> int | None:
        match job.kind:
            case Transfer.WRITE:
                if not self._may_write:
                    return None
                return self._files.write(job.key, self._slots[job.key.group][job.slot])
            case Transfer.READ:
                into = self._slots[job.key.group][job.slot]
                self._files.read(job.key, into)
                return len(into)
            case Transfer.RENEW:
                self._files.renew(job.key)
                return 0
            case Transfer.REMOVE:
                self._files.remove(job.key)
                return 0

    def _tell(self, job: Job, error: OSError) -> None:
        if job.kind is Transfer.WRITE:
            self._may_write = False
            _log.warning(
                "no more spans of the KV cache are written to %s: %s", self._files.folder, error
            )
        elif not isinstance(error, FileNotFoundError):  # another engine may have removed it
            _log.warning("a span of the KV cache could not be transferred: %s", error)


def _without_loop() -> None:
    """There is no loop yet."""
