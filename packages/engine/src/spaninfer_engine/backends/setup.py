"""The capacity of a device: the number of sequences, and the memory of their keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

from spaninfer_engine.backends.encodings import Encode
from spaninfer_engine.ops.step import A, SpanCache
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.spec.nodes import CacheGroup
from spaninfer_engine.step.sequences import Sequences


@dataclass(frozen=True, slots=True)
class DeviceSetup:
    """Sequences, and the spans that they share, per cache group.

    With KV cache offloading, each cache group has `num_slots` host slots. `encode` runs the towers
    of a model that has some.
    """

    sequences: Sequences
    num_spans: tuple[int, ...]
    num_slots: tuple[int, ...] = ()
    encode: Encode[Any] | None = None


@dataclass(frozen=True, slots=True)
class KVMemory(Generic[A]):
    """The KV cache: spans, and host slots with KV cache offloading, per cache group."""

    caches: tuple[SpanCache[A], ...]
    slots: tuple[A, ...] = ()

    @classmethod
    def allocate(cls, ops: Ops[A], groups: Sequence[CacheGroup], setup: DeviceSetup) -> KVMemory[A]:
        """Return the memory that a setup needs, by the operators of a backend."""
        caches = tuple(
            ops.cache(group, count, setup.sequences.span_len)
            for group, count in zip(groups, setup.num_spans, strict=True)
        )
        if not setup.num_slots:
            return cls(caches)
        return cls(
            caches,
            tuple(ops.host_slots(*each) for each in zip(caches, setup.num_slots, strict=True)),
        )
