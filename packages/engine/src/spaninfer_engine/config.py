"""The options of an engine: requested by the caller, and as resolved at start."""

from __future__ import annotations

from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Literal, get_args

from spaninfer_engine.errors import ConfigError, shown
from spaninfer_engine.flags import flags_of, settle_flags
from spaninfer_engine.sizes import parse_bytes
from spaninfer_engine.step.plan import Tuning

BackendName = Literal["cuda", "cpu", "torch", "reference"]
DType = Literal["float32", "bfloat16", "float16"]
KVDType = Literal["float32", "bfloat16", "float16", "fp8", "int8", "uint4"]
Weights = Literal["checkpoint", "dummy"]
Quantize = Literal[
    "bfloat16",
    "fp8",
    "w8a8",
    "w4afp8",
    "w8a16",
    "w7a7",
    "w13a13",
    "int8",
    "int6",
    "int5",
    "int4",
    "iq4_nl",
    "int3.5",
    "int3",
    "int2",
]
GroupLen = Literal[32, 64, 128]
QuantizeGroup = GroupLen | Literal["row"]

DTYPES: tuple[DType, ...] = ("float32", "bfloat16", "float16")
WEIGHTS: tuple[Weights, ...] = ("checkpoint", "dummy")
QUANTIZE: tuple[Quantize, ...] = get_args(Quantize)
QUANTIZE_GROUPS: tuple[QuantizeGroup, ...] = (32, 64, 128, "row")

KV_DTYPES: tuple[KVDType, ...] = ("float32", "bfloat16", "float16", "fp8", "int8", "uint4")


def default_group(quantize: Quantize) -> QuantizeGroup:
    """Return the channels that share a scale where `quantize_group` is left out.

    32, as measured and published: a row's one scale costs 3 times as much in int8, 1.6e-4 nats,
    where llama.cpp's groups of 32 cost 5.4e-5 (docs/decisions/0027). Of w13a13 64: groups of 128
    embed 7 % more texts a second, but outliers may then cost cosines their fifth digit
    (docs/measurements/cpu-kernels.md). Of w4afp8 128: sums of a group are scaled, which takes a
    quarter of a GEMM's issue slots, and in groups of 32 all of them (docs/decisions/0038).
    """
    known: dict[Quantize, QuantizeGroup] = {"w13a13": 64, "w4afp8": 128}
    return known.get(quantize, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The options of an engine as the caller gives them; None leaves the choice to the engine.

    Raises ConfigError for a boolean that is none, and a path that is none: the other values are
    checked at the start.
    """

    model: str | Path
    weights: Weights = "checkpoint"  # "dummy": random numbers; the folder needs config.json only
    quantize: Quantize | None = None  # the format that GEMM weights are rounded to while loading
    quantize_group: QuantizeGroup | None = None  # channels that share a scale; None: default_group
    keep_head: bool = False  # keep the output head in 16 bits where `quantize` rounds the rest
    backend: BackendName | None = None
    device: str | None = None  # "cpu", "cuda", "cuda:1"; "gpu" means cuda
    dtype: DType | None = None  # None: the checkpoint's where the backend computes in it
    kv_dtype: KVDType | None = None  # of the KV cache; None: the one computed in
    max_len: int | None = None  # tokens of prompt and answer together
    span_len: int | None = None  # tokens per span
    memory: int | str | None = None  # bytes for the KV cache, or a string such as "8GiB"
    encoder_memory: int | str | None = None  # bytes for encodings of media, or "512MiB"
    max_running: int = 256  # requests in one step
    step_tokens: int | None = None  # tokens in one step
    max_waiting: int = 4096  # requests in the queue before QueueFull
    step_timeout_s: float = 300.0  # a longer step counts as hung, and the engine fails
    prefix_cache: bool = True
    kv_offload: int | str | None = None  # bytes of host memory for spans that leave the KV cache
    kv_disk: Path | None = None  # a folder for spans that outlive the engine
    kv_disk_size: int | str | None = None  # bytes of files in it; None: 10 GiB
    kv_ttl_s: float | None = None  # seconds that an unused span stays in both; None: no limit
    graphs: bool | None = None  # decode steps as CUDA graphs; None: where the backend has them
    tune: bool | None = None  # time kernels at the first start (cpu); None: for large models
    batch_invariant: bool = False  # bit-identical logits, whatever else is in the batch (cuda)
    spec: Path | None = None  # a spec file of the user's own; strings are paths, too
    chat_template: Path | None = None  # a Jinja file that replaces the model's own template
    served_name: str | None = None  # the model's name in statistics and over HTTP
    seed: int = 0  # seeds of requests without one are drawn from it

    def __post_init__(self) -> None:
        settle_flags(self, _FLAGS, _refused)
        group: object = self.quantize_group
        if isinstance(group, str) and group.isdecimal():  # as a shell or a file has it
            object.__setattr__(self, "quantize_group", int(group))
        for name in _PATHS:
            object.__setattr__(self, name, _as_path(name, getattr(self, name)))

    @property
    def memory_bytes(self) -> int | None:
        """`memory` as a number. Raises ConfigError for text that is no size."""
        return _as_bytes(self.memory)

    @property
    def encoder_bytes(self) -> int | None:
        """`encoder_memory` as a number. Raises ConfigError for text that is no size."""
        return _as_bytes(self.encoder_memory)

    @property
    def kv_offload_bytes(self) -> int | None:
        """`kv_offload` as a number. Raises ConfigError for text that is no size."""
        return _as_bytes(self.kv_offload)

    @property
    def kv_disk_size_bytes(self) -> int | None:
        """`kv_disk_size` as a number. Raises ConfigError for text that is no size."""
        return _as_bytes(self.kv_disk_size)


_FLAGS = flags_of(EngineConfig)
_PATHS = tuple(each.name for each in fields(EngineConfig) if each.type == "Path | None")


def _refused(name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"{name} is {shown(value)}; allowed is {allowed}")


def _as_path(name: str, value: str | PathLike[str] | None) -> Path | None:
    try:
        return None if value is None else Path(value)
    except TypeError as reason:
        raise _refused(name, value, "a path, or None") from reason


def _as_bytes(size: int | str | None) -> int | None:
    return parse_bytes(size) if isinstance(size, str) else size


@dataclass(frozen=True, slots=True)
class KVOffload:
    """The tiers that keep spans after they leave the KV cache."""

    num_slots: tuple[int, ...]  # of host memory, per cache group
    folder: Path | None  # of files
    disk_bytes: int  # of files, at the most
    ttl_s: float  # seconds after its last use in which a span expires; may be infinite


@dataclass(frozen=True, slots=True)
class Decision:
    """One row of the start-up table: what was decided, and why."""

    what: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Everything decided; the only form that travels on."""

    name: str  # the name under which the model is served
    architecture: str
    backend: BackendName
    device: str
    dtype: DType
    kv_dtype: KVDType  # of the KV cache
    max_len: int
    span_len: int
    num_spans: tuple[int, ...]  # per cache group
    max_running: int
    step_tokens: int
    max_waiting: int
    prefix_cache: bool
    tuning: Tuning
    seed: int
    kv_offload: KVOffload | None = None
    graphs: bool = False  # are decode steps replayed as CUDA graphs?
    step_timeout_s: float = 300.0
    batch_invariant: bool = False  # do logits of a request depend on it alone, to the last bit?
    max_encoded: int = 0  # tokens of media whose encodings are kept
    decisions: tuple[Decision, ...]
