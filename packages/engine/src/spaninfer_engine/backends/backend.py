"""A backend's description of itself: the numbers it computes in, its KV formats, and its limits.

What depends on the backend is a field or a method here; only files with weights packed for backend
cpu (load/packed/packing.py) name one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

from spaninfer_op_reference import WeightFormat

from spaninfer_engine.backends.hardware import Machine
from spaninfer_engine.backends.host.tower import MAX_ROWS, HostTower
from spaninfer_engine.backends.rank import ALONE, Rank
from spaninfer_engine.backends.start import BoundModel, Start, Tell
from spaninfer_engine.cache.memory_plan import Demand
from spaninfer_engine.config import BackendName, DType, EngineConfig, KVDType, Quantize
from spaninfer_engine.errors import ConfigError, UnsupportedTask
from spaninfer_engine.load.packed.packing import number_bits
from spaninfer_engine.ops.bound import Result
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.request.logprobs import TokenLogprobs
from spaninfer_engine.spec.nodes import CacheGroup
from spaninfer_engine.step.plan import Tuning

Chosen: TypeAlias = tuple[DType, str]
"""A dtype, and the reason for it."""

MAX_SPAN_LEN = 1024

HOST_TUNING = Tuning(step_tokens=512, mixed_prompt_tokens=2048, prompt_logits=32)
"""A prefill of 512 tokens is bound by arithmetic already, and decodes wait for it."""


PROMPT_LOGIT_BYTES = 64 << 20
"""Of logits of prompts in a step: 4,096 positions of the bundled model, 110 of a vocabulary of
152,000. With fewer the step computes fewer tokens at once, too."""


@dataclass(frozen=True, slots=True)
class HostSampling:
    """Host sampling functions of a backend; None selects the default of run.sampler.

    `sample(logits, rows)` is run.sampler.Sample, `logprobs` run.sampler.Report.
    """

    sample: Callable[..., Any] | None = None
    logprobs: Callable[..., TokenLogprobs] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """The arguments with which a backend is opened."""

    device: str
    dtype: DType
    kv_dtype: KVDType | None  # None: as computed
    stored_as: str  # dtype of the checkpoint
    groups: tuple[CacheGroup, ...]
    asked: EngineConfig
    formats: Mapping[str, WeightFormat]  # of weights that are stored quantised, by name
    rank: Rank = ALONE


OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with the number of units of work that are done, and of all."""


class Profiler(Protocol):
    """Measures what is computed between its start and its stop, each of which is called once."""

    def start(self) -> None:
        """Begin."""
        ...

    def stop(self, folder: Path, name: str) -> Path:
        """End, write a file whose name begins so, and return its path."""
        ...


class Backend(ABC):
    """One way to compute; stateless."""

    name: ClassVar[BackendName]
    summary: ClassVar[str]
    kv_dtypes: ClassVar[tuple[KVDType, ...]] = ()  # beside the dtype that is computed in
    quantizes: ClassVar[tuple[Quantize, ...]] = ()  # what weights can be rounded to while loading
    compares: ClassVar[tuple[Quantize, ...]] = ()  # of those, what loses least at its size
    latent_scales: ClassVar[int] = 1  # of a token's latent in codes: one, or its rotary part's too
    has_graphs: ClassVar[bool] = False
    can_tune: ClassVar[bool] = False  # does it time kernels at the first start?
    is_invariant: ClassVar[bool] = False  # can logits be the same to the bit in any batch?
    can_keep_head: ClassVar[bool] = False  # in 16 bits beside quantised weights
    needs_torch: ClassVar[bool] = False
    on_gpu: ClassVar[bool] = False  # can it compute on a GPU?
    on_cpu: ClassVar[bool] = True
    tuning: ClassVar[Tuning] = HOST_TUNING
    tower_rows: ClassVar[int] = MAX_ROWS  # of a batch of towers

    def code_activations(self, format: WeightFormat) -> str:  # noqa: ARG002
        """Return what weights of a checkpoint's format are multiplied by, for people."""
        return "int8 activations"

    @abstractmethod
    def choose_dtype(self, asked: EngineConfig, stored_as: str, machine: Machine) -> Chosen:
        """Return the dtype to compute in; ConfigError where another was requested."""

    def check(self, asked: EngineConfig, dtype: DType, machine: Machine) -> None:  # noqa: B027
        """Raise ConfigError for what the backend cannot do on this machine."""

    @abstractmethod
    def open(self, options: BackendOptions, on_progress: OnProgress | None = None) -> Ops[Any]:
        """Return the operators; only the backend's own framework is imported.

        `on_progress` reports kernels that are compiled while a step waits.
        """

    def rounded_bits(self, quantize: Quantize, dtype: DType) -> float:  # noqa: ARG002
        """Return the bits of a number that weights were rounded to while loading, as it is held."""
        return number_bits(quantize)

    def open_encoder(self, options: BackendOptions, tell: OnProgress | None = None) -> Ops[Any]:
        """Return the operators that the texts of an encoder are computed with."""
        return self.open(options, tell)

    def quantizes_for(self, result: Result) -> tuple[Quantize, ...]:  # noqa: ARG002
        """Return what weights of models with this kind of result can be rounded to."""
        return self.quantizes

    def open_towers(self, options: BackendOptions) -> Ops[Any]:
        """Return the operators that towers are computed with: others than a decoder's."""
        return self.open(options)

    def start_towers(self, towers: Sequence[HostTower[Any]], tell: Tell) -> int:  # noqa: ARG002
        """Make towers ready with the engine; return the bytes that their largest batch takes.

        Unless a backend does, their weights are read with the first media.
        """
        return 0

    @abstractmethod
    def start(
        self, bound: BoundModel, demand: Demand, *, asked: EngineConfig, span_len: int
    ) -> Start:
        """Return what starts the device of a bound model."""

    def profiler(self) -> Profiler:
        """Return a profiler of what the backend computes; UnsupportedTask without one."""
        raise UnsupportedTask(
            f"backend {self.name} has no profiler; choose --backend cpu, torch or cuda"
        )

    def kept_bits(self, format: WeightFormat) -> float | None:  # noqa: ARG002
        """Return the bits per weight in which a published format's codes are multiplied.

        None where there is no kernel for them: they are expanded while loading.
        """
        return None

    def host_sampling(self, vocab: int) -> HostSampling:  # noqa: ARG002
        """Return what samples on the host faster than the definition, as far as there is."""
        return HostSampling()

    def prompt_logits(self, vocab: int) -> int:
        """Return for how many positions of prompts one step computes logits: whole chunks of
        prompts where the vocabulary is small.
        """
        return max(self.tuning.prompt_logits, PROMPT_LOGIT_BYTES // (4 * vocab))


def only_float32(backend: Backend, asked: EngineConfig) -> Chosen:
    """Return float32; ConfigError where another dtype was requested."""
    if asked.dtype not in (None, "float32"):
        raise ConfigError(
            f"backend {backend.name} computes in float32, not in {asked.dtype}; "
            "choose --backend torch"
        )
    return "float32", f"what backend {backend.name} computes in"
