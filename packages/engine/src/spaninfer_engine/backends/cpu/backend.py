"""The description of backend cpu."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from spaninfer_op_reference import WeightFormat

from spaninfer_engine.backends.backend import (
    HOST_TUNING,
    Backend,
    BackendOptions,
    Chosen,
    HostSampling,
    OnProgress,
    Profiler,
    only_float32,
)
from spaninfer_engine.backends.hardware import Machine
from spaninfer_engine.backends.start import BoundModel, HostStart, Start
from spaninfer_engine.backends.start import Tell as StageTell
from spaninfer_engine.cache.memory_plan import Needs
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.load.packed.packing import CPU_GROUPED, packing_of
from spaninfer_engine.ops.table import Ops

TUNING = replace(HOST_TUNING, mixed_prompt_tokens=64, short_tokens=64, text_tokens=768)
"""Decodes wait for the prompts beside them: in the bundled model, a step of 8 decodes takes 10 ms,
64 tokens of prompts 23, 512 of them 168; that is 0.33 ms per token, not 0.36 (CPU time, EPYC).

Steps of texts take some 0.6 ms of Python each while one core waits, and the last is seldom full; in
larger ones values leave the second caches. MiniLM-L6's shape, int8 per row: a book's 128 sentences
take 1.07 times as long in steps of 512 tokens as of 1,024 (two cores of a Zen 4); 96 of them, and
24 texts of 128 tokens, 1.04 times as long in steps of 1,024 as of 768 (two cores of a Zen 5)."""


class TunedStart(HostStart[Any]):
    """The start of a HostDevice whose kernels are chosen for the model's weights."""

    def measure(self, tell: StageTell) -> Needs:
        """Time kernels, or find the times of an earlier start; memory is taken when it is used."""
        ops: Any = self._ops  # those that this backend opened
        ops.tune(partial(tell, "tuning"))
        return super().measure(tell)


class CpuBackend(Backend):
    """Numba kernels on a thread pool."""

    name = "cpu"
    tuning = TUNING
    summary = "numpy and Numba"
    can_tune = True
    kv_dtypes = ("float32", "bfloat16", "float16", "int8", "uint4")
    latent_scales = 2
    quantizes = ("bfloat16", *CPU_GROUPED)
    compares = ("int8", "int4")

    def choose_dtype(self, asked: EngineConfig, stored_as: str, machine: Machine) -> Chosen:  # noqa: ARG002
        """Return float32, or bfloat16 for the activations of matmuls."""
        if asked.dtype == "bfloat16":
            return asked.dtype, "requested: what GEMMs see of activations"
        return only_float32(self, asked)

    def profiler(self) -> Profiler:
        """Return what times operators."""
        from spaninfer_engine.backends.cpu.profiler import OperatorProfiler

        return OperatorProfiler()

    def open(self, options: BackendOptions, on_progress: OnProgress | None = None) -> Ops[Any]:
        """Return the kernels' operators."""
        from spaninfer_kernels_cpu import Format

        from spaninfer_engine.backends.cpu.ops import CpuOps, WeightForms
        from spaninfer_engine.backends.cpu.tuning import GemmTuner

        asked, dtype = options.asked, options.dtype
        kv_dtype = options.kv_dtype or dtype
        assert dtype != "float16", options
        assert kv_dtype != "fp8", options
        packing = packing_of(asked.quantize, asked.quantize_group)
        assert packing.quantize != "fp8", options
        assert packing.quantize != "w8a8", options
        assert packing.quantize != "w4afp8", options
        format = None if packing.quantize is None else Format(packing.quantize, packing.group)
        return CpuOps(
            dtype,
            weights=WeightForms(format, options.stored_as, options.formats),
            kv_dtype=kv_dtype,
            on_progress=on_progress,
            tuner=GemmTuner(asked.tune),
        )

    def kept_bits(self, format: WeightFormat) -> float | None:
        """Return the bits of weights whose codes are multiplied, scales included."""
        from spaninfer_engine.backends.cpu.quantised import kept_bits

        return kept_bits(format)

    def start(self, bound: BoundModel, *_: object, **__: object) -> Start:
        """Return the start of a device on the host, before which kernels are tuned."""
        return TunedStart(bound.programs.run, bound.ops, bound.model)

    def host_sampling(self, vocab: int) -> HostSampling:
        """Return the kernels."""
        from spaninfer_engine.backends.cpu.sampling import CpuDraw, CpuLogprobs

        return HostSampling(CpuDraw(vocab), CpuLogprobs(vocab))
