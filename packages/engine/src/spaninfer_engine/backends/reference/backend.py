"""The description of backend reference."""

from __future__ import annotations

from typing import Any

from spaninfer_engine.backends.backend import (
    Backend,
    BackendOptions,
    Chosen,
    OnProgress,
    only_float32,
)
from spaninfer_engine.backends.hardware import Machine
from spaninfer_engine.backends.start import BoundModel, HostStart, Start
from spaninfer_engine.config import DType, EngineConfig, Quantize
from spaninfer_engine.load.packed.packing import ROUNDED_NAMES, packing_of
from spaninfer_engine.ops.table import Ops


class ReferenceBackend(Backend):
    """The numpy definitions: the truth that other backends are compared with."""

    name = "reference"
    summary = "numpy"
    quantizes = ROUNDED_NAMES

    def choose_dtype(self, asked: EngineConfig, stored_as: str, machine: Machine) -> Chosen:  # noqa: ARG002
        """Float32."""
        return only_float32(self, asked)

    def open(self, options: BackendOptions, on_progress: OnProgress | None = None) -> Ops[Any]:  # noqa: ARG002
        """Return the definitions in float32."""
        from spaninfer_engine.backends.reference.ops import ReferenceOps
        from spaninfer_engine.backends.rounded_weights import rounded_format

        packing = packing_of(options.asked.quantize, options.asked.quantize_group)
        return ReferenceOps("float32", rounded_format(packing))

    def rounded_bits(self, quantize: Quantize, dtype: DType) -> float:  # noqa: ARG002
        """The numbers that levels stand for are held, in float32."""
        return 32

    def start(self, bound: BoundModel, *_: object, **__: object) -> Start:
        """Return the start of a device on the host."""
        return HostStart(bound.programs.run, bound.ops, bound.model)
