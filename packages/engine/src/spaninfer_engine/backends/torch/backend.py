"""The description of backend torch."""

from __future__ import annotations

from typing import Any

from spaninfer_engine.backends.backend import Backend, BackendOptions, Chosen, OnProgress, Profiler
from spaninfer_engine.backends.hardware import Machine
from spaninfer_engine.backends.start import BoundModel, HostStart, Start
from spaninfer_engine.config import DTYPES, DType, EngineConfig, Quantize
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load.packed.packing import ROUNDED_NAMES, packing_of
from spaninfer_engine.ops.table import Ops


class TorchBackend(Backend):
    """Plain torch: correct on every device that torch knows, fast on none."""

    name = "torch"
    summary = "any torch device"
    needs_torch = True
    quantizes = ROUNDED_NAMES
    on_gpu = True

    def choose_dtype(self, asked: EngineConfig, stored_as: str, machine: Machine) -> Chosen:  # noqa: ARG002
        """Return the requested dtype, or the checkpoint's."""
        if asked.dtype is not None:
            return asked.dtype, "requested"
        for known in DTYPES:
            if known == stored_as:
                return known, "the checkpoint's"
        return "float32", f"the checkpoint is in {stored_as}, which torch does not compute in"

    def open(self, options: BackendOptions, on_progress: OnProgress | None = None) -> Ops[Any]:  # noqa: ARG002
        """Return torch's operators on a device."""
        import torch

        from spaninfer_engine.backends.rounded_weights import rounded_format
        from spaninfer_engine.backends.torch.ops import TorchOps

        try:
            torch.device(options.device)
        except RuntimeError as unknown:
            raise ConfigError(
                f"device is {options.device!r}, which torch does not know ({unknown}); choose cpu "
                "or cuda, or omit --device to auto-select"
            ) from unknown
        packing = packing_of(options.asked.quantize, options.asked.quantize_group)
        return TorchOps(options.dtype, options.device, rounded_format(packing))

    def profiler(self) -> Profiler:
        """Return torch's profiler."""
        from spaninfer_engine.backends.torch.profiler import TorchProfiler

        return TorchProfiler()

    def rounded_bits(self, quantize: Quantize, dtype: DType) -> float:  # noqa: ARG002
        """The numbers that levels stand for are held, in the dtype that is computed in."""
        return 32 if dtype == "float32" else 16

    def start(self, bound: BoundModel, *_: object, **__: object) -> Start:
        """Return the start of a device whose steps the host goes through one by one."""
        return HostStart(bound.programs.run, bound.ops, bound.model)
