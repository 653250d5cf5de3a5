"""The slots of one cache group in host memory: slot numbers by the hash of what they hold.

A slot is in one place at a time:

    free ──take──► being filled ──put──► held ──pin──► pinned (a transfer is under way)
      ▲                 │                 │ ▲             │
      └────give_back────┘                 │ └────unpin────┘
                                          ├──take, least recently used first──► being filled
                                          └──expire, at the end of its time to live──► free

Like spans, slots are numbers here; their memory belongs to the device.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from math import inf

from spaninfer_engine.cache.ttl import FOREVER, TimeToLive


class HostSlots:
    """Slots that are free, being filled, held or pinned; constant time per operation."""

    def __init__(self, num_slots: int, ttl: TimeToLive = FOREVER) -> None:
        self.num_slots, self._ttl = num_slots, ttl
        self._free = list(range(num_slots - 1, -1, -1))  # the last one goes first
        self._slots: dict[bytes, int] = {}  # held and pinned
        self._held: OrderedDict[bytes, float] = OrderedDict()  # times of use, in order
        self._pins: dict[bytes, int] = {}

    @property
    def num_available(self) -> int:
        """Slots that `take` can hand out now."""
        return len(self._free) + len(self._held)

    @property
    def num_held(self) -> int:
        """Slots that hold a span, pinned ones included."""
        return len(self._slots)

    def find(self, span_hash: bytes) -> int | None:
        """Return the slot that holds the span with this hash."""
        return self._slots.get(span_hash)

    def touch(self, span_hash: bytes) -> None:
        """Note that a span was used, if a slot holds it."""
        if span_hash in self._held:
            self._hold(span_hash)

    def take(self) -> int | None:
        """Hand out a slot for new content; None if all are pinned or being filled."""
        if self._free:
            return self._free.pop()
        if not self._held:
            return None
        span_hash, _ = self._held.popitem(last=False)
        return self._slots.pop(span_hash)

    def put(self, span_hash: bytes, slot: int) -> None:
        """Note what a slot that was handed out holds now."""
        assert span_hash not in self._slots, "two slots hold the same span"
        self._slots[span_hash] = slot
        self._hold(span_hash)

    def give_back(self, slot: int) -> None:
        """Take back a slot that was handed out and could not be filled."""
        self._free.append(slot)

    def pin(self, span_hash: bytes) -> None:
        """Keep the slot of a held span until it is unpinned as often."""
        self._held.pop(span_hash, None)
        self._pins[span_hash] = self._pins.get(span_hash, 0) + 1

    def is_pinned(self, span_hash: bytes) -> bool:
        """Return True if a span is in a slot that cannot be taken."""
        return span_hash in self._pins

    def unpin(self, span_hash: bytes) -> None:
        """Undo one `pin`."""
        self._pins[span_hash] -= 1
        if self._pins[span_hash] == 0:
            del self._pins[span_hash]
            self._hold(span_hash)

    @property
    def time_left_s(self) -> float:
        """Seconds until the next span expires; infinite where none will."""
        return min(map(self._ttl.left_s, islice(self._held.values(), 1)), default=inf)

    def expire(self) -> int:
        """Free the slots of spans whose time to live is over; return how many. Pinned ones stay."""
        num_expired = 0
        while self.time_left_s <= 0:
            self._free.append(self._slots.pop(self._held.popitem(last=False)[0]))
            num_expired += 1
        return num_expired

    def _hold(self, span_hash: bytes) -> None:
        self._held[span_hash] = self._ttl.clock()
        self._held.move_to_end(span_hash)

    def check(self, num_filled: int = 0) -> None:
        """Assert that every slot is in one state, `num_filled` of them being filled."""
        assert self._held.keys() | self._pins.keys() == self._slots.keys(), "a slot's state lies"
        assert not self._held.keys() & self._pins.keys(), "a pinned slot can be taken"
        numbers = {*self._free, *self._slots.values()}
        assert len(numbers) == len(self._free) + len(self._slots), "a slot is in two states"
        assert len(numbers) == self.num_slots - num_filled, "a slot is lost"
