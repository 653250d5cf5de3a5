"""KV cache offloading: spans are copied to slots of host memory, and back when they are found.

    publish ──copy──► host slot          a copy per span, when it is published (write-through)
    start   ◄──copy── host slot          where a prefix that a prompt shares has left the pool

Spans that the pool evicts are thus in host memory already, and nothing waits for an eviction.

Copies are recorded in the order in which spans and slots change hands here, and the device makes
them in that order, in front of the next step that is launched and behind all that were. That is
all the synchronisation there is:

* A span is copied to its slot when the steps that computed it have finished; whoever takes the span
  next writes it in a later step, or by a later copy.
* A slot that is handed out anew is filled by a later copy than those that read it.
* A span that is loaded was free or cached: no step under way touches it. It is published at once,
  because every step that may read it is launched behind the copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spaninfer_engine.cache.host_slots import HostSlots
from spaninfer_engine.cache.pool import SpanPool
from spaninfer_engine.plan import SpanCopy


@dataclass(slots=True)
class OffloadCounts:
    """Spans of all cache groups since the start; they only grow."""

    stored: int = 0  # copied to host memory
    loaded: int = 0  # copied back
    hit_tokens: int = 0  # of prefixes that were found beyond the KV cache


class GroupDirectory:
    """The spans of one cache group by hash, wherever they are.

    Numbers below `pool.num_spans` are spans; slot s is number `pool.num_spans + s`.
    """

    def __init__(self, pool: SpanPool, slots: HostSlots) -> None:
        self._pool, self._slots = pool, slots

    def find(self, span_hash: bytes) -> int | None:
        """Return the number of the span with this hash."""
        span = self._pool.find(span_hash)
        if span is not None:
            return span
        slot = self._slots.find(span_hash)
        return None if slot is None else self._pool.num_spans + slot

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
    """The host slots of every cache group, and the copies that are due."""

    def __init__(self, pools: Sequence[SpanPool], num_slots: Sequence[int]) -> None:
        self.slots = tuple(map(HostSlots, num_slots))
        self.directories = tuple(map(GroupDirectory, pools, self.slots))
        self.counts = OffloadCounts()
        self._copies: list[SpanCopy] = []

    def store(self, group: int, spans: Sequence[int], hashes: Sequence[bytes]) -> None:
        """Have published spans copied to host memory, but for those that are there."""
        slots = self.slots[group]
        for span, span_hash in zip(spans, hashes, strict=True):
            if slots.find(span_hash) is not None:
                slots.touch(span_hash)
                continue
            slot = slots.take()
            if slot is None:
                continue
            slots.put(span_hash, slot)
            self._copies.append(SpanCopy(group, span, slot, to_host=True))
            self.counts.stored += 1

    def touch(self, hashes: Iterable[bytes]) -> None:
        """Note that spans were used: what comes last stays longest."""
        for span_hash in hashes:
            for slots in self.slots:
                slots.touch(span_hash)

    def load(self, group: int, span: int, slot: int) -> None:
        """Have a slot's content copied into a span that was taken for it."""
        self._copies.append(SpanCopy(group, span, slot, to_host=False))
        self.counts.loaded += 1

    def take_copies(self) -> list[SpanCopy]:
        """Return the copies that were recorded since the last call, in order."""
        copies, self._copies = self._copies, []
        return copies

    def check(self) -> None:
        """Assert that no slot is lost."""
        for slots in self.slots:
            slots.check()
