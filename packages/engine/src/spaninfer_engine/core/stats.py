"""Statistics of an engine: counters since its start, and its state now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from spaninfer_engine.cache.disk_tier import DiskCounts
from spaninfer_engine.request.request import FinishReason

if TYPE_CHECKING:  # API servers tell the figures, and have no scheduler
    from spaninfer_engine.cache.offload import SpanOffload
    from spaninfer_engine.cache.pool import SpanPool
    from spaninfer_engine.schedule.scheduler import Scheduler


class EngineState(Enum):
    """The life cycle of an engine."""

    RUNNING = "running"
    ASLEEP = "asleep"  # has given weights and KV cache back, and takes none
    DRAINING = "draining"  # takes no new ones, and finishes those it has
    CLOSED = "closed"
    FAILED = "failed"  # a step failed: EngineStats.failure says how


@dataclass(frozen=True, slots=True)
class SpanStats:
    """The spans of one cache group."""

    total: int
    in_use: int  # by requests
    cached: int  # in use by no request, with a prefix that may be requested again
    free: int

    @property
    def held(self) -> int:
        """Deprecated name of `in_use`."""
        return self.in_use

    @property
    def kept(self) -> int:
        """Deprecated name of `cached`."""
        return self.cached


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadStats:
    """KV cache offloading. Tokens are those of prefixes, found in a tier below the KV cache."""

    host_hit_tokens: int  # found in host memory
    disk_hit_tokens: int  # read from disk
    host_spans: int  # held in host memory now, of all cache groups
    host_slots: int  # that host memory has for them
    stored: int  # spans copied to host memory
    loaded: int  # spans copied back
    written: int  # spans written to disk
    read: int  # spans read from disk
    dropped: int  # spans neither copied nor written, because tiers were too slow
    failed: int  # spans that could not be written or read
    expired: int  # spans let go of in host memory and on disk, their time to live being over
    disk_bytes: int  # of files now


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot; counters count from the start of the engine, or since it last woke up, or took
    other weights. Times are seconds.

    Taken while the loop runs, so the numbers may be a step apart.
    """

    model: str
    state: EngineState
    failure: Exception | None
    running: int  # sequences that hold spans
    waiting: int  # sequences that wait to start, for the first one's prompt, or to start again
    span_len: int
    spans: tuple[SpanStats, ...]  # per cache group
    generated_tokens: int
    prefilled_tokens: int
    prefix_hit_tokens: int
    prefix_miss_tokens: int
    offload: OffloadStats | None = None  # None without KV cache offloading
    preemptions: int
    encoded_media: int = 0  # images, videos and clips that towers have seen
    finished: Mapping[FinishReason, int]
    embedded_texts: int = 0  # by an encoder
    steps: int
    step_s: float  # spent in steps
    last_step_s: float
    uptime_s: float

    @property
    def span_usage(self) -> float:
        """The share in use of the fullest cache group, from 0 to 1; 0 without groups."""
        return max((spans.in_use / spans.total for spans in self.spans), default=0.0)


@dataclass(slots=True)
class StepTimes:
    """Durations of steps."""

    num_steps: int = 0
    total_s: float = 0.0
    last_s: float = 0.0

    def add(self, step_s: float) -> None:
        """Count a step."""
        self.num_steps += 1
        self.total_s += step_s
        self.last_s = step_s


def snapshot(
    scheduler: Scheduler,
    times: StepTimes,
    *,
    model: str,
    state: EngineState,
    failure: Exception | None,
    uptime_s: float,
) -> EngineStats:
    """Return the numbers of now."""
    counts = scheduler.counts
    return EngineStats(
        model=model,
        state=state,
        failure=failure,
        running=scheduler.num_running,
        waiting=scheduler.num_waiting,
        span_len=scheduler.kv_cache.shape.span_len,
        spans=tuple(_span_stats(pool) for pool in scheduler.kv_cache.pools),
        generated_tokens=counts.generated_tokens,
        prefilled_tokens=counts.prefilled_tokens,
        prefix_hit_tokens=counts.prefix_hit_tokens,
        prefix_miss_tokens=counts.prefix_miss_tokens,
        offload=_offload_stats(scheduler.kv_cache.offload),
        preemptions=counts.preemptions,
        encoded_media=counts.encoded_media,
        finished={reason: counts.finished[reason] for reason in FinishReason},
        steps=times.num_steps,
        step_s=times.total_s,
        last_step_s=times.last_s,
        uptime_s=uptime_s,
    )


def _span_stats(pool: SpanPool) -> SpanStats:
    cached, in_use = pool.num_cached, pool.num_in_use
    return SpanStats(pool.num_spans, in_use, cached, free=max(0, pool.num_spans - in_use - cached))


def _offload_stats(offload: SpanOffload | None) -> OffloadStats | None:
    if offload is None:
        return None
    counts, disk = offload.counts, offload.disk
    transfers = DiskCounts() if disk is None else disk.counts
    return OffloadStats(
        host_hit_tokens=counts.host_hit_tokens,
        disk_hit_tokens=counts.disk_hit_tokens,
        host_spans=sum(slots.num_held for slots in offload.slots),
        host_slots=sum(slots.num_slots for slots in offload.slots),
        stored=counts.stored,
        loaded=counts.loaded,
        written=transfers.written,
        read=transfers.read,
        dropped=counts.dropped + transfers.dropped,
        failed=transfers.failed,
        expired=counts.expired + transfers.expired,
        disk_bytes=0 if disk is None else disk.num_bytes,
    )
