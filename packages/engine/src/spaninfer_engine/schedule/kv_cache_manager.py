"""The KV cache manager: allocates spans for sequences, and finds the prefixes that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from secrets import token_hex
from sys import maxsize
from typing import TypeAlias

from spaninfer_engine.cache.disk_tier import DiskTier
from spaninfer_engine.cache.host_slots import HostSlots
from spaninfer_engine.cache.memory_plan import STATES_PER_REQUEST
from spaninfer_engine.cache.offload import SpanOffload
from spaninfer_engine.cache.pool import SpanPool
from spaninfer_engine.cache.prefix import HashIndex, HashSeed, PrefixHit, SpanHasher, find_prefix
from spaninfer_engine.cache.rope_state import RopeState
from spaninfer_engine.cache.span_files import SpanKey
from spaninfer_engine.cache.state_table import SNAPSHOT_TOKENS, StateTable
from spaninfer_engine.cache.table import SpanTable
from spaninfer_engine.cache.ttl import FOREVER, TimeToLive
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.request.request import Request
from spaninfer_engine.schedule.admission import Limits
from spaninfer_engine.schedule.sequence import SequenceState
from spaninfer_engine.step.plan import SpanCopy


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The span cache as the scheduler sees it; tuples have one entry per cache group."""

    span_len: int
    num_spans: tuple[int, ...]
    windows: tuple[int | None, ...]
    kv_dtype: str
    rope_state: RopeState
    states: frozenset[int] = frozenset()  # groups whose spans are states of sequences
    snapshot_tokens: int = SNAPSHOT_TOKENS  # of a prompt, between two states that are kept
    share: bool = True  # may requests share prefixes with each other?
    num_slots: tuple[int, ...] = ()  # of host memory, for KV cache offloading
    ttl: TimeToLive = FOREVER  # of spans in these slots

    def capacity(self) -> int:
        """Return how many tokens of one request fit at the most."""
        full = [n for n, window in zip(self.num_spans, self.windows, strict=True) if window is None]
        return min(full) * self.span_len if full else maxsize


OpenDisk: TypeAlias = Callable[[Sequence[HostSlots]], DiskTier]
"""Returns the disk tier of these host slots."""


class Availability(IntEnum):
    """The time at which the spans of an allocation can be had; larger is later."""

    NOW = 0
    LATER = 1  # when the steps in flight have finished
    NEVER = 2  # not unless a sequence gives spans back


class KVCacheManager:
    """Takes spans for sequences, shares prefixes between them, and gives everything back."""

    def __init__(
        self, shape: CacheShape, limits: Limits, open_disk: OpenDisk | None = None
    ) -> None:
        _check_windows(shape, limits)
        self.shape, self._step_tokens = shape, limits.step_tokens
        self.pools = tuple(SpanPool(num_spans) for num_spans in shape.num_spans)
        self.offload: SpanOffload | None = None
        if shape.num_slots:
            self.offload = SpanOffload(self.pools, shape.num_slots, open_disk, shape.ttl)
        self._disk = None if self.offload is None else self.offload.disk
        self._indexes: Sequence[HashIndex] = (
            self.pools if self.offload is None else self.offload.indexes
        )
        self._no_hit = find_prefix([], self._indexes, shape.windows, shape.span_len)
        self._grown: list[SequenceState] = []
        self._epoch = ""

    def sequences_of(self, request: Request, limit: int) -> tuple[SequenceState, ...]:
        """Return the sequences of a request, without spans; may be called from any thread."""
        placement, shape = request.placement, self.shape
        hash_seed = HashSeed(
            kv_dtype=shape.kv_dtype,
            tenant=placement.tenant,
            adapter=placement.adapter,
            private=None if shape.share else request.id,
            epoch=self._epoch,
        )
        hasher = SpanHasher(
            hash_seed,
            shape.span_len,
            shape.rope_state,
            len(request.prompt_ids),
            request.media.runs() if request.media is not None else (),
        )
        if request.sampling.n > 1:  # once for all; that of a single one may be spared, see _hashes
            hasher.extend(request.prompt_ids)
        return tuple(
            SequenceState(
                request,
                index,
                limit=limit,
                hasher=hasher.copy() if index else hasher,
                tables=self._tables(),
            )
            for index in range(request.sampling.n)
        )

    def begin_epoch(self) -> None:
        """Share nothing between sequences made from now on and earlier ones, in any tier;
        may be called from any thread. Random, so that files of it mean nothing to a later engine.
        """
        self._epoch = token_hex(8)

    @property
    def is_reading(self) -> bool:
        """True while spans are being read from disk."""
        return self._disk is not None and self._disk.is_reading

    def is_fetching(self, seq: SequenceState) -> bool:
        """Return True while spans of the prefix are being read from disk. The first call starts it:
        as many as host memory has slots for.
        """
        if self._disk is None:
            return False
        fetch = self._disk.find_fetch(seq.seq_id)
        if fetch is None:
            fetch = self._disk.begin_fetch(seq.seq_id, self._keys_to_fetch(seq))
        return bool(fetch.awaited)

    def start(self, seq: SequenceState, spare: int) -> Availability:
        """Attach the longest cached prefix if the spans for the rest are available as well.

        What of the prefix is in host memory alone is copied into spans that are taken for it, as
        many as computing it would have taken. `spare` spans must stay available, so that a start
        does not cost another its place.
        """
        hit = self._hit(seq, self._indexes)
        begin = hit.num_spans * self.shape.span_len
        availability = Availability.NOW
        for table, (_, numbers) in zip(seq.tables, hit.tables, strict=True):
            # Behind a window, spans go back while a long prompt is computed step by step.
            reach = maxsize if table.window is None else begin + self._step_tokens
            missing = table.num_missing(min(seq.prefill_end, reach), hit.num_spans)
            shared = [number for number in numbers if number < table.pool.num_spans]
            loaded = len(numbers) - len(shared)
            count = missing + loaded + table.pool.num_not_in_use(shared) + table.num_spare(spare)
            availability = max(availability, _availability(table.pool, count))
        if availability is Availability.NOW:
            self._adopt(seq, hit)
            for table in seq.tables:
                if isinstance(table, StateTable):
                    table.begin(seq.prefill_end)
            seq.num_published_spans = hit.num_spans
            self._touch(seq)
            self._end_fetch(seq)
            seq.num_scheduled = seq.capacity = begin
        return availability

    def grow(self, seq: SequenceState, start: int, stop: int) -> Availability:
        """Take the spans that positions [start, stop) need; what some groups give is kept."""
        availability = Availability.NOW
        for table in seq.tables:
            if table.window is not None:
                table.slide(start)
            if not table.grow(stop):
                availability = max(availability, _availability(table.pool, table.num_missing(stop)))
        if availability is Availability.NOW:
            seq.capacity = min([table.stop for table in seq.tables]) * self.shape.span_len
            self._grown.append(seq)
        return availability

    def publish(self, seq: SequenceState, num_computed: int) -> None:
        """Publish the whole spans among the first `num_computed` positions, for others to share."""
        num_spans = num_computed // self.shape.span_len
        if self.shape.states:
            self._publish_snapshots(seq, num_spans)
        if num_spans <= seq.num_published_spans:
            return
        hashes = self._hashes(seq, num_spans)
        for group, table in enumerate(seq.tables):
            if isinstance(table, StateTable):
                continue
            begin, end = max(seq.num_published_spans, table.first), min(num_spans, table.stop)
            if begin < end:
                spans = table.spans[begin - table.first : end - table.first]
                table.pool.publish(spans, hashes[begin:end])
                if self.offload is not None:
                    self.offload.store(group, spans, hashes[begin:end])
        seq.num_published_spans = num_spans

    def _publish_snapshots(self, seq: SequenceState, num_spans: int) -> None:
        """Publish the states that were kept behind some of the first `num_spans` spans, and give
        them back: only who shares their prefix needs them. The next step may begin with the last.
        """
        num_passed = min(num_spans, (seq.num_scheduled - 1) // self.shape.span_len)
        for group in self.shape.states:
            table = seq.tables[group]
            assert isinstance(table, StateTable)
            for index, span in table.take_snapshots(num_passed):
                hashes = self._hashes(seq, index + 1)[index : index + 1]
                table.pool.publish([span], hashes)
                if self.offload is not None:
                    self.offload.store(group, [span], hashes)
                table.pool.give_back([span])

    def release(self, seq: SequenceState) -> None:
        """Give all spans of a sequence back: its keys are gone, unless their prefix is cached."""
        self._touch(seq)
        self._end_fetch(seq)
        for table in seq.tables:
            table.release()
        seq.num_scheduled = seq.capacity = seq.num_published_spans = 0

    def take_grown(self) -> list[SequenceState]:
        """Return the sequences that took spans since the last call; some may come twice."""
        grown, self._grown = self._grown, []
        return grown

    def take_copies(self) -> list[SpanCopy]:
        """Return the copies that have to be made before the next step, in order."""
        return [] if self.offload is None else self.offload.take_copies()

    def submit_transfers(self, ready: Callable[[], None]) -> None:
        """Start disk transfers, after the copies that `ready` waits for."""
        if self._disk is not None:
            self._disk.submit(ready)

    def take_transfers(self) -> None:
        """Take in the transfers to and from disk that have ended."""
        if self._disk is not None:
            self._disk.take_done()

    @property
    def time_left_s(self) -> float:
        """Seconds until the next offloaded span expires; infinite where none will."""
        return inf if self.offload is None else self.offload.time_left_s

    def expire(self) -> None:
        """Let go of offloaded spans whose time to live is over."""
        if self.offload is not None:
            self.offload.expire()

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Call this, in another thread, when transfers have ended."""
        if self._disk is not None:
            self._disk.wake_with(wake)

    def close(self) -> None:
        """Finish what is being written to disk; idempotent."""
        if self._disk is not None:
            self._disk.close()

    def mark_planned(self, step: int) -> None:
        """Note that a step was planned with the spans in use now."""
        for pool in self.pools:
            pool.mark_planned(step)

    def mark_finished(self, step: int) -> None:
        """Note that a step has finished."""
        for pool in self.pools:
            pool.mark_finished(step)

    def _tables(self) -> tuple[SpanTable | StateTable, ...]:
        shape = self.shape
        return tuple(
            StateTable(pool, shape.span_len, shape.snapshot_tokens)
            if group in shape.states
            else SpanTable(pool, shape.span_len, window)
            for group, (pool, window) in enumerate(zip(self.pools, shape.windows, strict=True))
        )

    def _adopt(self, seq: SequenceState, hit: PrefixHit) -> None:
        """Share the spans of a prefix, and load those that are in host memory alone."""
        if not hit.num_spans:
            return
        for group, (table, (first, numbers)) in enumerate(zip(seq.tables, hit.tables, strict=True)):
            num_spans = table.pool.num_spans
            table.adopt(first, [None if number >= num_spans else number for number in numbers])
            if self.offload is None:
                continue
            hashes = seq.hasher.hashes[first : first + len(numbers)]
            for span, number, span_hash in zip(table.spans, numbers, hashes, strict=True):
                if number >= num_spans:
                    table.pool.publish([span], [span_hash])
                    self.offload.load(group, span, number - num_spans)
        if self.offload is not None:
            self.offload.count_hit(hit, seq.seq_id, seq.hasher.hashes, self.shape.span_len)

    def _keys_to_fetch(self, seq: SequenceState) -> list[SpanKey]:
        """Return the spans outside the pool of the longest prefix that goes on on disk, as far as
        there are slots for them; none where nothing has to be read.
        """
        assert self.offload is not None
        indexes, shape = self.offload.indexes_with_disk, self.shape
        begin = self._hit(seq, self._indexes).num_spans
        hit = self._hit(seq, indexes)
        while hit.num_spans > begin:
            keys = self.offload.keys_outside_pool(hit, seq.hasher.hashes)
            num_lacking = self.offload.num_lacking(keys)
            if num_lacking <= 0:
                return keys
            hashes = seq.hasher.hashes[: max(hit.num_spans - num_lacking, 0)]
            hit = find_prefix(hashes, indexes, shape.windows, shape.span_len)
        return []

    def _end_fetch(self, seq: SequenceState) -> None:
        if self._disk is not None:
            self._disk.end_fetch(seq.seq_id)

    def _touch(self, seq: SequenceState) -> None:
        """Keep a sequence's published spans in host memory longest, their start longer still."""
        if self.offload is not None:
            self.offload.touch(reversed(seq.hasher.hashes[: seq.num_published_spans]))

    def _hit(self, seq: SequenceState, indexes: Sequence[HashIndex]) -> PrefixHit:
        reach = 0
        if not seq.reports_prompt:  # which needs every position
            reach = (seq.prefill_end - 1) // self.shape.span_len  # the last token samples
        if reach and self._lacks(self._hashes(seq, 1)[:1], indexes):
            reach = 0  # hashing is deferred until keys are computed: 0.15 ms for 4000 tokens
        if not reach:
            return self._no_hit
        hashes = self._hashes(seq, reach)[:reach]
        return find_prefix(hashes, indexes, self.shape.windows, self.shape.span_len)

    def _lacks(self, first: Sequence[bytes], indexes: Sequence[HashIndex]) -> bool:
        """Return True if a group that must hold a whole prefix lacks its first span."""
        groups = zip(indexes, self.shape.windows, strict=True)
        return any(window is None and not group.find_run(first) for group, window in groups)

    def _hashes(self, seq: SequenceState, count: int) -> list[bytes]:
        """Return the span hashes of a sequence, at least of its first `count` spans as far as their
        tokens are known.
        """
        hasher, span_len = seq.hasher, self.shape.span_len
        known = len(hasher.hashes)
        if known < count:
            hasher.extend(seq.ids(known * span_len, count * span_len))
        return hasher.hashes


def _availability(pool: SpanPool, count: int) -> Availability:
    if count <= pool.num_available:
        return Availability.NOW
    return (
        Availability.LATER
        if count <= pool.num_available + pool.num_pending_free
        else Availability.NEVER
    )


def _check_windows(shape: CacheShape, limits: Limits) -> None:
    """Raise unless one request fits into every group with a window."""
    for group, (num_spans, window) in enumerate(zip(shape.num_spans, shape.windows, strict=True)):
        if window is None:
            continue
        if group in shape.states:
            if num_spans < STATES_PER_REQUEST:
                raise ConfigError(
                    f"cache group {group} has room for {num_spans} states of sequences, and a "
                    f"request needs {STATES_PER_REQUEST}; give the cache more memory"
                )
            continue
        needed = min(
            # What a step sees and writes, which need not begin where a span does.
            -(-(window + limits.step_tokens - 2) // shape.span_len) + 1,
            -(-limits.context // shape.span_len),
        )
        if num_spans < needed:
            raise ConfigError(
                f"cache group {group} has {num_spans} spans of {shape.span_len} tokens; a window "
                f"of {window} and steps of {limits.step_tokens} tokens need {needed}; "
                "give the cache more memory, or lower step_tokens"
            )
