"""The start of a device: its needs are measured first, then it is made with what memory is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias

from spaninfer_engine.backends.host.device import HostDevice
from spaninfer_engine.backends.setup import DeviceSetup, KVMemory
from spaninfer_engine.cache.memory_plan import Needs
from spaninfer_engine.ops.bound import Programs
from spaninfer_engine.ops.rotary import Rotary
from spaninfer_engine.ops.step import A, Step
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.spec.nodes import Model, ropes

Tell: TypeAlias = Callable[[str, int, int], None]
"""A callback for progress: a stage, how many of its units are done, and of how many."""


class Start(Protocol):
    """A bound model on its way to a device."""

    def measure(self, tell: Tell) -> Needs:
        """Return what the device needs beside the KV cache; ConfigError if it is too much."""
        ...

    def device(self, setup: DeviceSetup, tell: Tell) -> Any:
        """Return the device, ready to compute: a Device, of an encoder a TextDevice."""
        ...


@dataclass(frozen=True, slots=True)
class BoundModel:
    """A model, the operators of a backend, and the model's programs bound to them.

    `few_layers` binds the same model with few layers, which calls the same kernels.
    """

    programs: Programs[Any]
    ops: Any
    model: Model
    few_layers: Callable[[], Programs[Any]]


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

    def device(self, setup: DeviceSetup, tell: Tell) -> HostDevice[Any]:
        """Return the device with every kernel ready; the first start ever compiles them here."""
        tell("kernels", 0, 1)
        memory = KVMemory.allocate(self._ops, self._model.groups, setup)
        rotaries = tuple(map(Rotary, ropes(self._model)))
        device = HostDevice(self._forward, self._ops, memory, rotaries, setup)
        device.warm_up()
        tell("kernels", 1, 1)
        return device
