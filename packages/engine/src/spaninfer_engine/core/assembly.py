"""The core of an engine, assembled from the parts of its model."""

from __future__ import annotations

from collections.abc import Sequence

from spaninfer_engine.cache.disk_tier import DiskTier
from spaninfer_engine.cache.host_slots import HostSlots
from spaninfer_engine.cache.rope_state import rope_state_of
from spaninfer_engine.cache.span_transfer import SpanTransfer
from spaninfer_engine.cache.state_table import STATE_WINDOW
from spaninfer_engine.cache.ttl import FOREVER, TimeToLive
from spaninfer_engine.config import KVOffload, Resolved
from spaninfer_engine.core.embedder import Embedder
from spaninfer_engine.core.loop import Core
from spaninfer_engine.frontend.encoder import EncoderFront
from spaninfer_engine.run.embedding import EmbeddingRunner
from spaninfer_engine.schedule.admission import Limits
from spaninfer_engine.schedule.kv_cache_manager import CacheShape, OpenDisk
from spaninfer_engine.schedule.scheduler import Scheduler
from spaninfer_engine.spec.nodes import Decoder, Encoder
from spaninfer_engine.startup.components import Parts, PlanRunner


def core_of(parts: Parts) -> Core | Embedder:
    """Return what runs the steps of a model, in threads of its own if need be."""
    resolved, tokenizer = parts.resolved, parts.tokenizer
    match parts.model, parts.runner:
        case Encoder() as encoder, EmbeddingRunner() as runner:
            assert parts.head is not None
            front = EncoderFront.new(encoder, tokenizer, parts.template, resolved.max_len)
            return Embedder(front, runner, parts.head, resolved)
        case Decoder() as decoder, runner if not isinstance(runner, EmbeddingRunner):
            shape = _cache_shape(decoder, resolved)
            limits = _limits(decoder, resolved, shape)
            scheduler = Scheduler(limits, shape, _open_disk(parts, runner))
            return Core(scheduler, runner, tokenizer, resolved.step_timeout_s)
    raise AssertionError("the runner is another model's")


def _open_disk(parts: Parts, runner: PlanRunner) -> OpenDisk | None:
    """Return what opens the disk tier of KV cache offloading; None without one."""
    files, offload = parts.span_files, parts.resolved.kv_offload
    if files is None or offload is None:
        return None

    def open_disk(slots: Sequence[HostSlots]) -> DiskTier:
        transfer = SpanTransfer(files, runner.host_slots)
        return DiskTier(transfer, slots, files.listing(), offload.disk_bytes, _ttl(offload))

    return open_disk


def _ttl(offload: KVOffload | None) -> TimeToLive:
    return FOREVER if offload is None else TimeToLive(offload.ttl_s)


def _cache_shape(decoder: Decoder, resolved: Resolved) -> CacheShape:
    return CacheShape(
        span_len=resolved.span_len,
        num_spans=resolved.num_spans,
        windows=tuple(
            group.window if group.state is None else STATE_WINDOW for group in decoder.groups
        ),
        states=frozenset(group.index for group in decoder.groups if group.state is not None),
        kv_dtype=resolved.kv_dtype,
        rope_state=rope_state_of(decoder),
        share=resolved.prefix_cache,
        num_slots=() if resolved.kv_offload is None else resolved.kv_offload.num_slots,
        ttl=_ttl(resolved.kv_offload),
    )


def _limits(decoder: Decoder, resolved: Resolved, shape: CacheShape) -> Limits:
    return Limits(
        context=min(resolved.max_len, shape.capacity()),
        vocab=decoder.vocab,
        max_running=resolved.max_running,
        max_waiting=resolved.max_waiting,
        tuning=resolved.tuning,
        max_encoded=resolved.max_encoded,
    )
