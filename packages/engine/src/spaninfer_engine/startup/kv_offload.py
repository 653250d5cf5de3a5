"""Decisions about KV cache offloading: host slots, and the folder of a model's spans on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from importlib.metadata import version
from math import inf, isinf
from pathlib import Path

from spaninfer_engine.backends.host_memory import total_bytes
from spaninfer_engine.backends.registry import BACKENDS
from spaninfer_engine.cache.memory_plan import Stored, gib, span_bytes
from spaninfer_engine.cache.span_files import SpanFiles
from spaninfer_engine.config import Decision, EngineConfig, KVOffload, Resolved
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load import Checkpoint
from spaninfer_engine.spec.nodes import CacheGroup, Model

STAGING_BYTES = 256 << 20  # of slots through which spans pass to and from disk, unasked
DISK_BYTES = 10 << 30  # of files, unasked


def decide_kv_offload(
    asked: EngineConfig,
    groups: Sequence[CacheGroup],
    span_len: int,
    stored: Stored,
    *,
    on_host: bool,
) -> KVOffload | None:
    """Return how spans are offloaded; None where that was not requested.

    Cache groups get equally many slots; those of states, if there are others, half of the memory.
    ConfigError where the options contradict each other, or the KV cache is `on_host`, where slots
    beside it would be copies for nothing.
    """
    size, disk = asked.kv_offload_bytes, asked.kv_disk
    if disk is None and asked.kv_disk_size is not None:
        raise ConfigError("kv_disk_size is given without a folder; give --kv-disk, or leave it out")
    ttl_s = _ttl_s(asked, has_tiers=bool(size) or disk is not None)
    if not size and disk is None:
        return None
    _check_tiers(asked, on_host=on_host)
    return KVOffload(
        num_slots=_slots_of(size or STAGING_BYTES, groups, span_len, stored),
        folder=disk,
        disk_bytes=asked.kv_disk_size_bytes or DISK_BYTES,
        ttl_s=ttl_s,
    )


def _check_tiers(asked: EngineConfig, *, on_host: bool) -> None:
    """Raise ConfigError where tiers would hold nothing, or nothing but copies."""
    if not asked.prefix_cache:
        raise ConfigError(
            "KV cache offloading keeps prefixes, and the prefix cache is off; leave out "
            "--kv-offload and --kv-disk, or --no-prefix-cache"
        )
    if on_host and asked.kv_disk is None:
        raise ConfigError(
            f"--kv-offload is {asked.kv_offload_bytes:,} bytes of host memory, where this "
            "device's KV cache is already; raise --memory instead, or give --kv-disk, too"
        )


def _slots_of(
    budget: int, groups: Sequence[CacheGroup], span_len: int, stored: Stored
) -> tuple[int, ...]:
    """Return how many slots of each group fit into so many bytes; ConfigError below two of each."""
    if budget > total_bytes():
        raise ConfigError(
            f"--kv-offload is {gib(budget)}, and this machine gives a process {gib(total_bytes())} "
            "at most; lower it"
        )
    keys = sum(span_bytes(group, span_len, stored) for group in groups if group.state is None)
    states = sum(span_bytes(group, span_len, stored) for group in groups if group.state is not None)
    if budget < 2 * (one := keys + states):
        raise ConfigError(
            f"--kv-offload is {budget:,} bytes; a span takes {one:,}, and at least two "
            "must fit; raise it"
        )
    share = budget // 2 if keys and states else budget  # states are as large as many spans
    return tuple(share // (keys if group.state is None else states) for group in groups)


def _ttl_s(asked: EngineConfig, *, has_tiers: bool) -> float:
    """Return the time to live; ConfigError for one that is no time, or without tiers."""
    ttl_s = asked.kv_ttl_s
    if ttl_s is None:
        return inf
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not 0 < ttl_s < inf:
        raise ConfigError(
            f"--kv-ttl is {ttl_s!r} seconds; allowed is a finite number above 0; leave it out to "
            "keep prefixes until their room is needed"
        )
    if not has_tiers:
        raise ConfigError(
            "--kv-ttl limits how long prefixes stay in host memory and on disk, and neither keeps "
            "any; give --kv-offload or --kv-disk, or leave it out"
        )
    return float(ttl_s)


def offload_decisions(offload: KVOffload | None, span_len: int) -> list[Decision]:
    """Return the rows of the start-up table."""
    if offload is None:
        return []
    slots = f"{max(offload.num_slots) * span_len:,} tokens in host memory"
    disk = f", {gib(offload.disk_bytes)} on disk" if offload.folder is not None else ""
    ttl = "" if isinf(offload.ttl_s) else f", until unused for {offload.ttl_s:,g} s"
    return [Decision("KV offload", slots + disk + ttl, "requested")]


def open_span_files(
    asked: EngineConfig, checkpoint: Checkpoint, model: Model, resolved: Resolved
) -> SpanFiles | None:
    """Return the files of this model's spans, in a folder that no other model has.

    None without a disk tier. ConfigError for a folder that cannot be used.
    """
    offload = resolved.kv_offload
    if offload is None or offload.folder is None:
        return None
    return SpanFiles.open(offload.folder / _fingerprint(asked, checkpoint, model, resolved))


def _fingerprint(
    asked: EngineConfig, checkpoint: Checkpoint, model: Model, resolved: Resolved
) -> str:
    """Return a name that changes with everything besides tokens that spans depend on."""
    facts = {
        "version": version("spaninfer-engine"),
        "files": list(_files(checkpoint.path)),
        "config": checkpoint.config,
        "spec": None if asked.spec is None else asked.spec.read_text(encoding="utf-8"),
        "weights": (asked.weights, asked.seed if asked.weights == "dummy" else None),
        "quantize": (asked.quantize, asked.quantize_group),
        "numbers": (resolved.backend, resolved.dtype, resolved.kv_dtype, resolved.span_len),
        "latent scales": BACKENDS[resolved.backend].latent_scales,
        "groups": [repr(group) for group in model.groups],
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _files(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and time of what a model is read from."""
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file():
            status = file.stat()
            yield file.name, status.st_size, status.st_mtime_ns
