"""The threads that parse and tokenise bodies: a lane for each order of size.

Parsing and tokenising take about 1 µs per byte, and nothing interrupts a long text. So a body
waits only for bodies of its own order of size, one at a time; within a lane it is fair among
clients. Work of a client that has left is dropped: at once where it waits, else at its next stage.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import get_native_id
from typing import Any, Generic, TypeVar

from spaninfer_serving.admission.fair_queue import Client, FairQueue
from spaninfer_serving.error_mapping import busy

T = TypeVar("T")
Check = Callable[[], None]
"""Raises ClientLeft between two stages of work whose client has left."""

# The largest body of each lane but the last, which has no limit of its own. 16 KiB are 4,000
# tokens of English: 10 to 20 ms. 256 KiB are 64,000: 0.3 s.
LANE_BYTES = (16 << 10, 256 << 10)

# How far behind the engine's threads each lane's has to stand: at 10, a thread that wants a CPU
# beside one at 0 gets a tenth. Not less: it may hold the interpreter when its time is over.
NICE = (0, 5, 10)

# Bodies that wait in one lane; one more may always enter an empty one.
WAITING_BYTES = 256 << 20


class ClientLeft(Exception):
    """The client left before the work was done."""


@dataclass(slots=True)
class _Waiter:
    """The waiter of a body: apart from the job, because work and its exceptions hold it."""

    has_left: bool = False

    def check(self) -> None:
        if self.has_left:
            raise ClientLeft


@dataclass(eq=False, slots=True)
class _Job(Generic[T]):
    """A body that waits, is being parsed, or needs neither any more."""

    work: Callable[[Check], T] | None  # holds the body; None: begun, or dropped
    num_bytes: int
    result: asyncio.Future[T]
    waiter: _Waiter = field(default_factory=_Waiter)


@dataclass(slots=True)
class _Lane:
    """Bodies of one order of size."""

    thread: ThreadPoolExecutor
    waiting: FairQueue[_Job[Any]] = field(default_factory=FairQueue)
    num_bytes: int = 0  # of bodies that wait or are being parsed
    is_busy: bool = False


def _lane(number: int) -> _Lane:
    name = f"spaninfer-parse-{number}"
    return _Lane(ThreadPoolExecutor(1, name, _give_way, (NICE[number],)))


def _give_way(nice: int) -> None:
    """Lower the priority of this thread, for machines with fewer CPUs than busy threads."""
    if sys.platform == "linux":  # elsewhere, only whole processes have such an order
        os.setpriority(os.PRIO_PROCESS, get_native_id(), nice + os.getpriority(os.PRIO_PROCESS, 0))


class ParsePool:
    """Parses at most `max_requests` bodies at a time, and in each lane a bounded number of bytes.

    To be used by the tasks of one event loop.
    """

    def __init__(self, max_requests: int) -> None:
        self._lanes = [_lane(number) for number in range(len(NICE))]
        self._max_requests = max_requests
        self._num_requests = 0

    async def run(self, num_bytes: int, client: Client, work: Callable[[Check], T]) -> T:
        """Return what the work returns; Problem 429 where too much waits already.

        Cancelling it drops the work.
        """
        lane = self._lanes[sum(num_bytes > limit for limit in LANE_BYTES)]
        self._check_room(lane, num_bytes)
        job: _Job[T] = _Job(work, num_bytes, asyncio.get_running_loop().create_future())
        self._num_requests += 1
        lane.num_bytes += num_bytes
        lane.waiting.put(client, num_bytes, job)
        self._start_next(lane)
        try:
            return await job.result
        except asyncio.CancelledError:
            job.waiter.has_left = True
            if job.work is not None:
                self._release(lane, job)
            raise
        finally:
            # An exception holds this frame, and the job holds the exception. In such a cycle bodies
            # that were refused lay until the garbage collector came: 48 of 2 MB, 280 MiB.
            del job

    def _check_room(self, lane: _Lane, num_bytes: int) -> None:
        if self._num_requests >= self._max_requests:
            raise busy(
                f"{self._num_requests} requests are being parsed, as many as --max-running and "
                "--max-waiting allow together; try again later"
            )
        if lane.num_bytes and lane.num_bytes + num_bytes > WAITING_BYTES:
            raise busy(
                f"{lane.num_bytes >> 10} KiB of requests are being parsed, and this one has "
                f"{num_bytes >> 10} KiB; at most {WAITING_BYTES >> 10} KiB may wait; "
                "try again later"
            )

    def _start_next(self, lane: _Lane) -> None:
        while len(lane.waiting) and not lane.is_busy:
            job = lane.waiting.take()
            if job.work is not None:
                lane.is_busy = True
                begun = lane.thread.submit(job.work, job.waiter.check)
                begun.add_done_callback(partial(self._report, lane, job))
                job.work = None

    def _report(self, lane: _Lane, job: _Job[T], done: Future[T]) -> None:
        """Tell the event loop that a thread is done; called in the loop's thread."""
        with suppress(RuntimeError):  # the loop is closed, and what waited with it
            job.result.get_loop().call_soon_threadsafe(self._finish, lane, job, done)

    def _finish(self, lane: _Lane, job: _Job[T], done: Future[T]) -> None:
        lane.is_busy = False
        self._release(lane, job)
        if not job.result.done():
            error = done.exception()
            if error is None:
                job.result.set_result(done.result())
            else:
                job.result.set_exception(error)
        self._start_next(lane)

    def _release(self, lane: _Lane, job: _Job[T]) -> None:
        """Give back what a job took of the limits."""
        job.work = None
        lane.num_bytes -= job.num_bytes
        self._num_requests -= 1
