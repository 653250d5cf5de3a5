"""KV cache offloading: spans are copied to slots of host memory, and back when they are found.

    publish ──copy──► host slot ──write──► file     once per span, when it is published
    start   ◄──copy── host slot ◄──read─── file     where a shared prefix has left the pool

Spans that the pool evicts are thus in host memory already, and nothing waits for an eviction. The
files are cache/disk_tier.py.

Copies are recorded in the order in which spans and slots change hands here, and the device makes
them in that order, in front of the next step that is launched and behind all that were. That is
all the synchronisation there is:

* A span is copied to its slot when the steps that computed it have finished; the next owner of
  the span writes it in a later step, or by a later copy.
* A slot that is handed out anew is filled by a later copy than those that read it.
* A span that is loaded was free or cached: no step under way touches it. It is published at once,
  because every step that may read it is launched behind the copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from spaninfer_engine.cache.disk_tier import DiskTier
from spaninfer_engine.cache.host_slots import HostSlots
from spaninfer_engine.cache.pool import SpanPool
from spaninfer_engine.cache.prefix import PrefixHit
from spaninfer_engine.cache.span_files import SpanKey
from spaninfer_engine.cache.ttl import FOREVER, TimeToLive
from spaninfer_engine.step.plan import SpanCopy


@dataclass(slots=True)
class OffloadCounts:
    """Spans of all cache groups since the start; they only grow."""

    stored: int = 0  # copied to host memory
    loaded: int = 0  # copied back
    dropped: int = 0  # not copied, because every slot was being written or read
    expired: int = 0  # let go of, because their time to live was over
    host_hit_tokens: int = 0  # of prefixes, found in host memory
    disk_hit_tokens: int = 0  # of prefixes, read from disk


class TieredIndex:
    """The hash index of one cache group over all tiers: device, host memory and disk.

    Numbers below `pool.num_spans` are spans; slot s is number `pool.num_spans + s`. The number
    behind those of all slots means a file, where `is_on_disk` says that there is one.
    """

    def __init__(
        self,
        pool: SpanPool,
        slots: HostSlots,
        is_on_disk: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._pool, self._slots, self._is_on_disk = pool, slots, is_on_disk

    def find(self, span_hash: bytes) -> int | None:
        """Return the number of the span with this hash."""
        span = self._pool.find(span_hash)
        if span is not None:
            return span
        slot = self._slots.find(span_hash)
        if slot is not None:
            return self._pool.num_spans + slot
        if self._is_on_disk is not None and self._is_on_disk(span_hash):
            return self._pool.num_spans + self._slots.num_slots
        return None

    def find_run(self, hashes: Iterable[bytes]) -> list[int]:
        """Return the numbers of the spans with these hashes, up to the first that is nowhere."""
        numbers = []
        for span_hash in hashes:
            number = self.find(span_hash)
            if number is None:
                break
            numbers.append(number)
        return numbers


class SpanOffload:
    """The host slots of every cache group, the copies that are due, and the disk tier, if any."""

    def __init__(
        self,
        pools: Sequence[SpanPool],
        num_slots: Sequence[int],
        open_disk: Callable[[Sequence[HostSlots]], DiskTier] | None = None,
        ttl: TimeToLive = FOREVER,
    ) -> None:
        self.slots = tuple(HostSlots(count, ttl) for count in num_slots)
        self.indexes = tuple(map(TieredIndex, pools, self.slots))
        self.disk = None if open_disk is None else open_disk(self.slots)
        self.counts = OffloadCounts()
        self._pools = tuple(pools)
        self._copies: list[SpanCopy] = []
        self.indexes_with_disk = self.indexes
        if self.disk is not None:
            has = self.disk.has
            self.indexes_with_disk = tuple(
                TieredIndex(pool, slots, partial(has, group))
                for group, (pool, slots) in enumerate(zip(pools, self.slots, strict=True))
            )

    def store(self, group: int, spans: Sequence[int], hashes: Sequence[bytes]) -> None:
        """Record copies of published spans to host memory, except those that are there."""
        slots = self.slots[group]
        for span, span_hash in zip(spans, hashes, strict=True):
            if slots.find(span_hash) is not None:
                slots.touch(span_hash)
                continue
            slot = slots.take()
            if slot is None:
                self.counts.dropped += 1
                continue
            slots.put(span_hash, slot)
            self._copies.append(SpanCopy(group, span, slot, to_host=True))
            self.counts.stored += 1
            if self.disk is not None:
                self.disk.write(SpanKey(group, span_hash), slot)

    def touch(self, hashes: Iterable[bytes]) -> None:
        """Note that spans were used: what comes last stays longest."""
        for span_hash in hashes:
            for group, slots in enumerate(self.slots):
                slots.touch(span_hash)
                if self.disk is not None:
                    self.disk.touch(SpanKey(group, span_hash))

    @property
    def time_left_s(self) -> float:
        """Seconds until the next span expires in one of the tiers; infinite where none will."""
        in_host = min(slots.time_left_s for slots in self.slots)
        return in_host if self.disk is None else min(in_host, self.disk.time_left_s)

    def expire(self) -> None:
        """Let go of spans whose time to live is over: their slots are free, their files removed."""
        self.counts.expired += sum(slots.expire() for slots in self.slots)
        if self.disk is not None:
            self.disk.expire()

    def load(self, group: int, span: int, slot: int) -> None:
        """Record the copy of a slot's content into a span that was taken for it."""
        self._copies.append(SpanCopy(group, span, slot, to_host=False))
        self.counts.loaded += 1

    def keys_outside_pool(self, hit: PrefixHit, hashes: Sequence[bytes]) -> list[SpanKey]:
        """Return the spans of a prefix that are in host memory or on disk alone."""
        return [key for _, key in self._outside_pool(hit, hashes)]

    def num_lacking(self, keys: Sequence[SpanKey]) -> int:
        """Return for how many of these spans the worst cache group has no slot.

        Those that are being read, or pinned, have theirs.
        """
        counts = Counter(key.group for key in keys if not self._has_slot(key))
        return max(counts[group] - slots.num_available for group, slots in enumerate(self.slots))

    def _has_slot(self, key: SpanKey) -> bool:
        is_read = self.disk is not None and self.disk.is_read(key)
        return is_read or self.slots[key.group].is_pinned(key.span_hash)

    def count_hit(
        self, hit: PrefixHit, seq_id: int, hashes: Sequence[bytes], span_len: int
    ) -> None:
        """Count the tokens of a prefix by the slowest tier that one of their spans came from."""
        fetch = None if self.disk is None else self.disk.find_fetch(seq_id)
        read = set[SpanKey]() if fetch is None else fetch.read
        outside = self._outside_pool(hit, hashes)
        from_disk = {index for index, key in outside if key in read}
        from_host = {index for index, _ in outside} - from_disk
        self.counts.host_hit_tokens += len(from_host) * span_len
        self.counts.disk_hit_tokens += len(from_disk) * span_len

    def _outside_pool(self, hit: PrefixHit, hashes: Sequence[bytes]) -> list[tuple[int, SpanKey]]:
        return [
            (index, SpanKey(group, hashes[index]))
            for group, (first, numbers) in enumerate(hit.tables)
            for index, number in enumerate(numbers, first)
            if number >= self._pools[group].num_spans
        ]

    def take_copies(self) -> list[SpanCopy]:
        """Return the copies that were recorded since the last call, in order."""
        copies, self._copies = self._copies, []
        return copies

    def check(self) -> None:
        """Assert that no slot is lost."""
        for group, slots in enumerate(self.slots):
            slots.check(0 if self.disk is None else self.disk.num_reading(group))
