"""The start of a device: its needs are measured first, then it is made with what memory is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeAlias

from spaninfer_engine.backends.encodings import Encode
from spaninfer_engine.backends.host.device import HostDevice
from spaninfer_engine.kv_memory import Needs
from spaninfer_engine.ops.rotary import Rotary
from spaninfer_engine.ops.step import A, SpanCache, Step
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.spec.nodes import Model, ropes
from spaninfer_engine.step.device import Device
from spaninfer_engine.step.sequences import Sequences

Tell: TypeAlias = Callable[[str, int, int], None]
"""Is told a stage, how many of its units are done, and of how many."""


class Start(Protocol):
    """A bound model on its way to a device."""

    def measure(self, tell: Tell) -> Needs:
        """Return what the device needs beside the KV cache; ConfigError if it is too much."""
        ...

    def device(
        self,
        sequences: Sequences,
        num_spans: tuple[int, ...],
        tell: Tell,
        num_slots: tuple[int, ...] = (),
        encode: Encode[Any] | None = None,
    ) -> Device:
        """Return the device that serves `sequences`, ready to compute.

        With KV cache offloading, each cache group has `num_slots` host slots. `encode` runs
        the towers of a model that has some.
        """
        ...


class HostStart(Generic[A]):
    """The start of a HostDevice: memory is taken when it is used, nothing is measured."""

    def __init__(
        self,
        forward: Callable[[Step[A]], A],
        ops: Ops[A],
        model: Model,
    ) -> None:
        self._forward, self._ops, self._model = forward, ops, model

    def measure(self, tell: Tell) -> Needs:  # noqa: ARG002
        """Nothing is needed that could be measured."""
        return Needs()

    def device(
        self,
        sequences: Sequences,
        num_spans: tuple[int, ...],
        tell: Tell,
        num_slots: tuple[int, ...] = (),
        encode: Encode[Any] | None = None,
    ) -> HostDevice[Any]:
        """Return the device with every kernel ready; the first start ever compiles them here."""
        tell("kernels", 0, 1)
        caches = tuple(
            self._ops.cache(group, count, sequences.span_len)
            for group, count in zip(self._model.groups, num_spans, strict=True)
        )
        rotaries = tuple(map(Rotary, ropes(self._model)))
        slots = host_slots(self._ops, caches, num_slots)
        device = HostDevice(self._forward, self._ops, caches, rotaries, sequences, slots, encode)
        device.warm_up()
        tell("kernels", 1, 1)
        return device


def host_slots(
    ops: Ops[A], caches: tuple[SpanCache[A], ...], num_slots: tuple[int, ...]
) -> tuple[A, ...]:
    """Return the host slots of each cache group; () without KV cache offloading."""
    if not num_slots:
        return ()
    return tuple(ops.host_slots(*each) for each in zip(caches, num_slots, strict=True))
