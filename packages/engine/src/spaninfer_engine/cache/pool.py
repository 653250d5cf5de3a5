"""The allocator of one cache group: span numbers handed out and taken back.

A number is in one place at a time:

    free ──take──► in use ──give_back──► pending free ──finish──► free    (no hash)
                     ▲                        │        └────────► cached  (published)
                     ├─────────share──────────┘                     │
                     ├─────────share────────────────────────────────┤
                     └─────────take, least recently used first──────┘

Spans in use are reference counted. Spans that are pending free have no reference left, but a step
that was planned with them may still run: they wait until every step planned by then has finished.
Cached spans hold a prefix that may be requested again; they are handed out for new content once
nothing is free.

These are numbers: the memory that they stand for is a backend's, which allocates it once
(`Tensors.cache` in ops/tensors.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray


class SpanState(IntEnum):
    """The use of a span, rising."""

    FREE = 0  # or pending free
    CACHED = 1
    IN_USE = 2
    SHARED = 3  # in use by several


class SpanPool:
    """Spans that are free, in use, pending free or cached; constant time per span and operation."""

    def __init__(self, num_spans: int) -> None:
        self.num_spans = num_spans
        self._free = list(range(num_spans - 1, -1, -1))  # the last one goes first
        self._ref_counts = [0] * num_spans
        self._pending_free: OrderedDict[int, int] = OrderedDict()  # span -> step, rising
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._hashes: list[bytes | None] = [None] * num_spans
        self._by_hash: dict[bytes, int] = {}
        self._planned = self._finished = 0  # numbers of the newest step planned, and finished

    @property
    def num_available(self) -> int:
        """Spans that `take` can hand out now."""
        return len(self._free) + len(self._cached)

    @property
    def num_pending_free(self) -> int:
        """Spans that become available when the steps in flight have finished."""
        return len(self._pending_free)

    @property
    def num_cached(self) -> int:
        """Spans that no request uses and that hold a prefix."""
        return len(self._cached)

    @property
    def num_in_use(self) -> int:
        """Spans that requests use."""
        return self.num_spans - self.num_available - self.num_pending_free

    def states(self) -> NDArray[np.uint8]:
        """Return the SpanState of every span; any thread may ask, while another works here."""
        cached, ref_counts = list(self._cached), list(self._ref_counts)
        states = np.minimum(np.array(ref_counts, np.int64), 2).astype(np.uint8)
        states[states > 0] += 1
        idle = np.array(cached, np.int64)
        states[idle[states[idle] == SpanState.FREE]] = SpanState.CACHED
        return states

    def num_not_in_use(self, spans: Iterable[int]) -> int:
        """Return how many of these spans no request uses."""
        return sum(self._ref_counts[span] == 0 for span in spans)

    def take(self, count: int) -> list[int] | None:
        """Hand out `count` spans with one reference each; None if there are not enough."""
        if count > len(self._free) + len(self._cached):
            return None
        free, ref_counts = self._free, self._ref_counts
        first = max(len(free) - count, 0)
        spans = free[first:]
        spans.reverse()
        del free[first:]
        spans += [self._take_cached() for _ in range(count - len(spans))]
        for span in spans:
            ref_counts[span] = 1
        return spans

    def share(self, spans: Iterable[int]) -> None:
        """Add a reference to each of spans that are in use, pending free or cached."""
        ref_counts, pending = self._ref_counts, self._pending_free
        for span in spans:
            if ref_counts[span] == 0 and pending.pop(span, None) is None:
                del self._cached[span]
            ref_counts[span] += 1

    def give_back(self, spans: Iterable[int]) -> None:
        """Remove one reference from each span.

        Give the end of a prefix back before its start: what was given back first is taken first.
        """
        ref_counts, pending, planned = self._ref_counts, self._pending_free, self._planned
        passed = []
        for span in spans:
            left = ref_counts[span] = ref_counts[span] - 1
            assert left >= 0, f"span {span} was given back more often than taken"
            if left == 0:
                passed.append(span)
        if planned > self._finished:
            pending.update(dict.fromkeys(passed, planned))
        else:
            self._take_back(passed)

    def publish(self, spans: Sequence[int], hashes: Sequence[bytes]) -> None:
        """Publish the content of spans in use; a second span with the same content stays
        unpublished.
        """
        ref_counts, known, by_hash = self._ref_counts, self._hashes, self._by_hash
        for span, span_hash in zip(spans, hashes, strict=True):
            assert ref_counts[span] > 0, f"span {span} is published, but not in use"
            if known[span] is None and span_hash not in by_hash:
                known[span] = span_hash
                by_hash[span_hash] = span

    def forget(self) -> None:
        """Forget all published content: cached spans become free, those in use stay in use."""
        self._free.extend(self._cached)
        self._cached.clear()
        self._hashes = [None] * self.num_spans
        self._by_hash.clear()

    def find(self, span_hash: bytes) -> int | None:
        """Return the published span with this hash."""
        return self._by_hash.get(span_hash)

    def find_run(self, hashes: Iterable[bytes]) -> list[int]:
        """Return the published spans with these hashes, up to the first that no span has."""
        by_hash = self._by_hash
        spans = []
        for span_hash in hashes:
            span = by_hash.get(span_hash)
            if span is None:
                break
            spans.append(span)
        return spans

    def mark_planned(self, step: int) -> None:
        """Note that a step was planned with the spans in use now."""
        assert step > self._planned, f"step {step} was planned after step {self._planned}"
        self._planned = step

    def mark_finished(self, step: int) -> None:
        """Note that a step, and with it all before, has finished: spans that waited are settled."""
        assert self._finished < step <= self._planned, f"step {step} finished out of order"
        self._finished = step
        passed = list(takewhile(lambda span: self._pending_free[span] <= step, self._pending_free))
        for span in passed:
            del self._pending_free[span]
        self._take_back(passed)

    def check(self) -> None:
        """Assert that every span is in exactly one state, and every published hash is true."""
        in_use = {span for span, count in enumerate(self._ref_counts) if count}
        states = [set(self._free), in_use, set(self._pending_free), set(self._cached)]
        assert len(self._free) == len(states[0]), "a span is free twice"
        assert sum(map(len, states)) == self.num_spans, "a span is missing, or in two states"
        assert set().union(*states) == set(range(self.num_spans)), "a span is missing"
        published = {
            span: span_hash for span, span_hash in enumerate(self._hashes) if span_hash is not None
        }
        assert published == {span: span_hash for span_hash, span in self._by_hash.items()}, (
            "a hash lies"
        )
        assert all(span in published for span in self._cached), "a cached span has no hash"
        assert not any(span in published for span in self._free), "a free span has a hash"

    def _take_cached(self) -> int:
        """Return the span that was unused for longest, for new content."""
        span, _ = self._cached.popitem(last=False)
        span_hash = self._hashes[span]
        assert span_hash is not None
        del self._by_hash[span_hash]
        self._hashes[span] = None
        return span

    def _take_back(self, spans: Iterable[int]) -> None:
        free, cached, hashes = self._free, self._cached, self._hashes
        for span in spans:
            if hashes[span] is None:
                free.append(span)
            else:
                cached[span] = None
