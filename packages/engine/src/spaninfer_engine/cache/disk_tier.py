"""The disk tier of KV cache offloading: which spans have files, and what is read for whom.

    host slot ──write──► file      once per span, when it has been copied to its slot
    host slot ◄──read─── file      before a sequence starts that waits for it (`Fetch`)

A slot is pinned while it is written, and what was read for a sequence until the sequence starts.
Only the engine's loop touches this; the transfer's thread works on jobs that are handed to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from spaninfer_engine.cache.host_slots import HostSlots
from spaninfer_engine.cache.span_files import SpanFile, SpanKey
from spaninfer_engine.cache.span_transfer import Done, Job, SpanTransfer, Transfer
from spaninfer_engine.cache.ttl import FOREVER, TimeToLive


@dataclass(slots=True)
class DiskCounts:
    """Spans of all cache groups since the start; they only grow."""

    written: int = 0
    read: int = 0
    dropped: int = 0  # not written, because the disk was too slow
    failed: int = 0  # not written or read, because of an error
    expired: int = 0  # removed, because their time to live was over


@dataclass(slots=True)
class Fetch:
    """The spans that are read for one sequence."""

    awaited: set[SpanKey] = field(default_factory=set)
    read: set[SpanKey] = field(default_factory=set)
    pinned: list[SpanKey] = field(default_factory=list)  # until the sequence starts


@dataclass(slots=True)
class _Entry:
    """A span's file. Its own time lags behind the last use (see `TimeToLive.is_stale`)."""

    num_bytes: int
    used_s: float
    file_s: float


class DiskTier:
    """Spans with files, up to `limit_bytes` of them; the least recently used are removed first, and
    those whose time to live is over.

    `listing` are those that are there at the start, least recently used first.
    """

    def __init__(
        self,
        transfer: SpanTransfer,
        slots: Sequence[HostSlots],
        listing: Mapping[SpanKey, SpanFile],
        limit_bytes: int,
        ttl: TimeToLive = FOREVER,
    ) -> None:
        self.counts = DiskCounts()
        self.num_bytes = sum(file.num_bytes for file in listing.values())
        self._transfer, self._slots = transfer, slots
        self._limit_bytes, self._ttl = limit_bytes, ttl
        now = ttl.clock()
        self._index = OrderedDict(  # least recently used first; no file is of the future
            (key, _Entry(file.num_bytes, min(file.used_s, now), min(file.used_s, now)))
            for key, file in listing.items()
        )
        self._jobs: list[Job] = []
        self._num_writing = [0] * len(slots)
        self._readers: dict[SpanKey, list[Fetch]] = {}
        self._fetches: dict[int, Fetch] = {}  # by sequence
        self.expire()
        self._remove_surplus()

    @property
    def is_reading(self) -> bool:
        """True while spans are being read from disk."""
        return bool(self._readers)

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Call this, in the transfer's thread, when a read has ended, or all jobs have."""
        self._transfer.wake_with(wake)

    def has(self, group: int, span_hash: bytes) -> bool:
        """Return True if a span has a file."""
        return SpanKey(group, span_hash) in self._index

    def num_reading(self, group: int) -> int:
        """Return how many slots of a cache group are being filled."""
        return sum(key.group == group for key in self._readers)

    def is_read(self, key: SpanKey) -> bool:
        """Return True if a span is being read from disk."""
        return key in self._readers

    def write(self, key: SpanKey, slot: int) -> None:
        """Queue the write of a span that was copied to a slot, unless it is on disk.

        Writes take half of the slots at the most: one that comes too early is dropped.
        """
        if key in self._index:
            return
        if 2 * self._num_writing[key.group] >= self._slots[key.group].num_slots:
            self.counts.dropped += 1
            return
        self._num_writing[key.group] += 1
        self._slots[key.group].pin(key.span_hash)
        self._jobs.append(Job(Transfer.WRITE, key, slot))

    def touch(self, key: SpanKey) -> None:
        """Note that a span was used, if it has a file."""
        entry = self._index.get(key)
        if entry is None:
            return
        entry.used_s = self._ttl.clock()
        self._index.move_to_end(key)
        if self._ttl.is_stale(entry.file_s):
            entry.file_s = entry.used_s
            self._jobs.append(Job(Transfer.RENEW, key))

    @property
    def time_left_s(self) -> float:
        """Seconds until the next file expires; infinite where none will."""
        used = (entry.used_s for entry in islice(self._index.values(), 1))
        return min(map(self._ttl.left_s, used), default=inf)

    def expire(self) -> None:
        """Remove the files whose time to live is over."""
        while self.time_left_s <= 0:
            self._remove_oldest()
            self.counts.expired += 1

    def find_fetch(self, seq_id: int) -> Fetch | None:
        """Return what is read for a sequence, if that has begun."""
        return self._fetches.get(seq_id)

    def begin_fetch(self, seq_id: int, keys: Sequence[SpanKey]) -> Fetch:
        """Start reading a prefix's spans that are on disk, and keep the others in host memory."""
        fetch = self._fetches[seq_id] = Fetch()
        on_disk = []
        for key in keys:
            if self._slots[key.group].find(key.span_hash) is None:
                on_disk.append(key)
            else:
                self._pin(key, fetch)
        for key in on_disk:
            self._read(key, fetch)
        return fetch

    def end_fetch(self, seq_id: int) -> None:
        """Let go of what was read for a sequence that has started, or has ended."""
        fetch = self._fetches.pop(seq_id, None)
        if fetch is None:
            return
        for key in fetch.awaited:
            self._readers[key].remove(fetch)
        for key in fetch.pinned:
            self._slots[key.group].unpin(key.span_hash)

    def submit(self, ready: Callable[[], None]) -> None:
        """Hand jobs to the thread; `ready` waits for the copies that have begun until now."""
        for job in self._jobs:
            self._transfer.submit(job, ready)
        self._jobs.clear()

    def take_done(self) -> None:
        """Take in what the thread has done."""
        for done in self._transfer.take_done():
            match done.job.kind:
                case Transfer.WRITE:
                    self._written(done)
                case Transfer.READ:
                    self._end_read(done)
                case Transfer.RENEW | Transfer.REMOVE:
                    pass

    def _read(self, key: SpanKey, fetch: Fetch) -> None:
        if key not in self._readers:
            slot = self._slots[key.group].take()
            if slot is None:
                return
            self._readers[key] = []
            self._jobs.append(Job(Transfer.READ, key, slot))
        self._readers[key].append(fetch)
        fetch.awaited.add(key)

    def _pin(self, key: SpanKey, fetch: Fetch) -> None:
        self._slots[key.group].pin(key.span_hash)
        fetch.pinned.append(key)

    def _written(self, done: Done) -> None:
        key, num_bytes = done.job.key, done.num_bytes
        self._num_writing[key.group] -= 1
        self._slots[key.group].unpin(key.span_hash)
        if num_bytes is None:
            self.counts.failed += 1
            return
        self.counts.written += 1
        now = self._ttl.clock()
        self._index[key] = _Entry(num_bytes, now, now)
        self.num_bytes += num_bytes
        self._remove_surplus()

    def _end_read(self, done: Done) -> None:
        key, slots = done.job.key, self._slots[done.job.key.group]
        fetches = self._readers.pop(key)
        for fetch in fetches:
            fetch.awaited.discard(key)
        if done.num_bytes is None:
            self.counts.failed += 1
            lost = self._index.pop(key, None)
            self.num_bytes -= 0 if lost is None else lost.num_bytes
            slots.give_back(done.job.slot)
            return
        self.counts.read += 1
        if (entry := self._index.get(key)) is not None:  # the thread has renewed the file
            entry.used_s = entry.file_s = self._ttl.clock()
            self._index.move_to_end(key)
        if slots.find(key.span_hash) is None:
            slots.put(key.span_hash, done.job.slot)
        else:  # somebody has computed it meanwhile
            slots.give_back(done.job.slot)
        for fetch in fetches:
            fetch.read.add(key)
            self._pin(key, fetch)

    def _remove_surplus(self) -> None:
        while self.num_bytes > self._limit_bytes and self._index:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        key, entry = self._index.popitem(last=False)
        self.num_bytes -= entry.num_bytes
        self._jobs.append(Job(Transfer.REMOVE, key))

    def close(self) -> None:
        """Finish what is being written, and end the thread; idempotent."""
        self._transfer.close()
