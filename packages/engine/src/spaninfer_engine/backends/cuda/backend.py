"""The description of backend cuda."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from spaninfer_op_reference import WeightFormat

from spaninfer_engine.backends.backend import (
    MAX_SPAN_LEN,
    Backend,
    BackendOptions,
    Chosen,
    OnProgress,
    Profiler,
)
from spaninfer_engine.backends.hardware import Machine
from spaninfer_engine.backends.host.tower import HostTower
from spaninfer_engine.backends.start import BoundModel, Start, Tell
from spaninfer_engine.cache.memory_plan import Demand
from spaninfer_engine.config import DType, EngineConfig, Quantize
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load.packed.packing import (
    ROUNDED_NAMES,
    TABLE_NAMES,
    number_bits,
    packing_of,
)
from spaninfer_engine.ops.bound import TEXT, Result
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.spec.nodes import Encoder
from spaninfer_engine.step.plan import Tuning

MIN_SPAN_LEN = 16  # and a power of two: what the kernels address
MIN_CAPABILITY = (7, 5)  # Turing, the oldest that there are kernels for
BFLOAT16_CAPABILITY = (8, 0)

_VARYING = frozenset(
    {"head_linear", "plain_attention", "sparse_selection", "sparse_attention", "linear_attention"}
)


class CudaBackend(Backend):
    """Kernels of our own, cuBLAS, and CUDA graphs on one NVIDIA GPU."""

    name = "cuda"
    summary = "kernels of our own"
    kv_dtypes = ("fp8", "int8", "uint4")
    has_graphs = True
    quantizes = ("fp8", "w8a8", "w4afp8", *ROUNDED_NAMES)
    compares = ("fp8", "int8", "int4")
    is_invariant = True
    can_keep_head = True
    needs_torch = True
    on_gpu = True
    on_cpu = False
    # Eight pictures of 1024 x 1024 pixels of Qwen2-VL: 1.4 GiB between operators of a 7B model.
    tower_rows = 44_032
    tuning = Tuning(
        # A step reads all weights, for few tokens as for many: 8192 take a model of 7 billion
        # parameters 0.2 s on an H200, and it computes them at its full rate.
        step_tokens=8192,
        # A step of this many is bound by arithmetic: longer ones compute little sooner, and every
        # decode in them waits. 8192 of them take 7B 160 ms on an H200, these 40; with 1024, 256
        # prompts of 512 tokens would take 5 % longer, because every step reads all keys.
        mixed_prompt_tokens=2048,
        prompt_logits=32,  # on GPUs of 1 GB; see `prompt_logits`
        # GEMMs of 7B beside 256 decodes take an H200 436 µs a layer for 320 tokens of prompts and
        # 435 for 384, 702 for 704 and 700 for 768: what fills no tile costs what it does.
        prompt_tile=256,
        # 7B computes these in 165 ms. Of many requests that come at once, so many more begin
        # together, and are decoded by steps that read all weights for all of them.
        pause_tokens=8192,
        # Small encoders are bound by launches: 200 of them, 15 µs each, are 6 layers of MiniLM.
        text_tokens=32_768,
        texts=2048,
    )

    def prompt_logits(self, vocab: int) -> int:
        """Return as many as take 2 % of the GPU's memory: with a vocabulary of 152,000 tokens,
        9,300 on an H200, more than a step computes, and 1,600 on a GPU of 24 GB.
        """
        import torch

        total = torch.cuda.mem_get_info()[1] if torch.cuda.is_available() else 0
        return max(self.tuning.prompt_logits, total // 50 // (2 * vocab))

    def code_activations(self, format: WeightFormat) -> str:
        """Return the codes of FP8 and W8A8, which experts do without, or 16 bits."""
        from spaninfer_engine.backends.cuda.weights.scaled import codes_of

        codes = codes_of([format])
        if codes is None:
            return "16-bit activations"
        return f"{codes.code} activations (of experts: 16 bits)"

    def choose_dtype(self, asked: EngineConfig, stored_as: str, machine: Machine) -> Chosen:
        """Return a 16-bit dtype: the checkpoint's where the GPU has it."""
        if asked.dtype == "float32":
            raise ConfigError(
                "backend cuda computes in bfloat16 and float16, not in float32; choose "
                "--backend torch"
            )
        if asked.dtype is not None:
            return asked.dtype, "requested"
        if stored_as == "float16":
            return "float16", "the checkpoint's"
        if machine.capability < BFLOAT16_CAPABILITY:
            return "float16", f"the checkpoint is in {stored_as}, the GPU too old for bfloat16"
        if stored_as == "bfloat16":
            return "bfloat16", "the checkpoint's"
        return "bfloat16", f"the checkpoint is in {stored_as}, backend cuda in 16 bits"

    def why_not(self, asked: EngineConfig, dtype: str, machine: Machine) -> str | None:
        """Return why plain torch serves better here; None where the kernels can be used."""
        if dtype not in ("bfloat16", "float16"):
            return f"the kernels of backend cuda compute in 16 bits, not in {dtype}"
        if not machine.has_kernels:
            return "for the device; faster kernels: nox -s install -- cuda, in the checkout"
        if machine.capability < _min_capability(dtype):
            return f"the GPU is too old for kernels in {dtype}"
        if asked.span_len is not None and not _suits(asked.span_len):
            return f"the kernels of backend cuda do not take spans of {asked.span_len} tokens"
        return None

    def check(self, asked: EngineConfig, dtype: DType, machine: Machine) -> None:
        """Refuse what the kernels cannot do, or not on this GPU."""
        if not machine.has_kernels:
            raise ConfigError(
                "backend cuda needs kernels that are not installed: "
                "nox -s install -- cuda, in the root of the checkout"
            )
        least = _min_capability(dtype)
        if machine.capability < least:
            raise ConfigError(
                f"backend cuda in {dtype} needs compute capability {least[0]}.{least[1]}, and the "
                f"GPU has {machine.capability[0]}.{machine.capability[1]}; choose --backend torch"
            )
        if asked.span_len is not None and not _suits(asked.span_len):
            raise ConfigError(
                f"span_len is {asked.span_len}; backend cuda takes powers of two from "
                f"{MIN_SPAN_LEN} to {MAX_SPAN_LEN}"
            )

    def profiler(self) -> Profiler:
        """Return torch's profiler."""
        from spaninfer_engine.backends.torch.profiler import TorchProfiler

        return TorchProfiler()

    def rounded_bits(self, quantize: Quantize, dtype: DType) -> float:  # noqa: ARG002
        """GEMMs read codes of 4 and of 8 bits, and levels of a table as numbers of 8."""
        return 4 if number_bits(quantize) <= 4 and quantize not in TABLE_NAMES else 8

    def open(self, options: BackendOptions, tell: OnProgress | None = None) -> Ops[Any]:  # noqa: ARG002
        """Return the operators; kernels are compiled when the start is measured."""
        import torch

        from spaninfer_engine.backends.cuda.fusions.linear_attention import refuse_states
        from spaninfer_engine.backends.cuda.ops import CudaOps
        from spaninfer_engine.backends.cuda.weights.packing import WeightForms
        from spaninfer_engine.backends.cuda.weights.quantised import format_of_packing
        from spaninfer_engine.backends.cuda.weights.scaled import codes_of_packing
        from spaninfer_engine.backends.rounded_weights import rounded_format

        refuse_states(options.groups, torch.cuda.get_device_capability(options.device))
        assert options.dtype != "float32", options
        packing = packing_of(options.asked.quantize, options.asked.quantize_group)
        of_gpu = codes_of_packing(packing) or format_of_packing(packing)
        return CudaOps(
            options.dtype,
            options.device,
            options.groups,
            options.kv_dtype,
            weights=WeightForms(of_gpu or rounded_format(packing), bool(options.formats)),
            batch_invariant=options.asked.batch_invariant,
        )

    def open_encoder(self, options: BackendOptions, tell: OnProgress | None = None) -> Ops[Any]:  # noqa: ARG002
        """Return the operators; kernels are compiled when the start is measured."""
        from spaninfer_engine.backends.cuda.encoder import CudaEncoderOps

        return CudaEncoderOps(
            options.dtype, options.device, batch_invariant=options.asked.batch_invariant
        )

    def quantizes_for(self, result: Result) -> tuple[Quantize, ...]:
        """GEMMs of encoders multiply in 16 bits."""
        return () if result is Result.VECTORS else self.quantizes

    def open_towers(self, options: BackendOptions) -> Ops[Any]:
        """Return the operators of towers."""
        from spaninfer_engine.backends.cuda.tower import CudaTowerOps

        return CudaTowerOps(
            options.dtype, options.device, batch_invariant=options.asked.batch_invariant
        )

    def start_towers(self, towers: Sequence[HostTower[Any]], tell: Tell) -> int:
        """Read their weights, compile their kernels and compute the largest batch of each."""
        from spaninfer_engine.backends.cuda.start import warm_up_towers

        return warm_up_towers(towers, tell)

    def kept_bits(self, format: WeightFormat) -> float | None:
        """Return the bits of weights whose codes are multiplied, scales included."""
        from spaninfer_engine.backends.cuda.weights import quantised, scaled

        return scaled.kept_bits(format) or quantised.kept_bits(format)

    def start(
        self, bound: BoundModel, demand: Demand, *, asked: EngineConfig, span_len: int
    ) -> Start:
        """Return the start of a device that computes by itself."""
        from spaninfer_engine.backends.cuda.start import CudaStart

        model = bound.model
        if isinstance(model, Encoder):
            from spaninfer_engine.backends.cuda.encoder_start import CudaEncoderStart

            return CudaEncoderStart(bound, demand)
        if asked.batch_invariant:
            refuse_varying(step.name for step in bound.programs[TEXT].kernels)
        if model.towers and model.media is not None and model.media.bidirectional:
            refuse_codes(asked)
        graphs = asked.graphs is not False
        return CudaStart(
            bound,
            demand,
            span_len=span_len,
            graphs=graphs,
            tuning=replace(self.tuning, prompt_logits=self.prompt_logits(model.vocab)),
        )


def refuse_varying(steps: Iterable[str]) -> None:
    """Raise ConfigError for steps of a program whose rows depend on what is beside them."""
    if varying := sorted(_VARYING & set(steps)):
        raise ConfigError(
            "batch_invariant is not supported for this model: it needs "
            f"{', '.join(varying)}, whose kernels change their summation order with batch "
            "size; omit it"
        )


def refuse_codes(asked: EngineConfig) -> None:
    """Raise ConfigError for what plain operators cannot do, by which tokens of images see later
    ones.
    """
    for name, value in (("kv_dtype", asked.kv_dtype), ("batch_invariant", asked.batch_invariant)):
        if value:
            raise ConfigError(
                f"{name} {value} is not supported for this model: tokens of its images "
                "see later ones, and no kernel does both yet; omit it, or choose "
                "--backend cpu"
            )


def _min_capability(dtype: str) -> tuple[int, int]:
    return BFLOAT16_CAPABILITY if dtype == "bfloat16" else MIN_CAPABILITY


def _suits(span_len: int) -> bool:
    return span_len >= MIN_SPAN_LEN and span_len & (span_len - 1) == 0
