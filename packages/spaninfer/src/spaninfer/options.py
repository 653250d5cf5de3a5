"""The options that several commands share, with the words that --help prints."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from spaninfer_engine import SamplingParams
from spaninfer_engine.backends.registry import CPU, CUDA
from spaninfer_engine.config import BackendName, DType, KVDType, Quantize
from spaninfer_engine.startup.limits import SPAN_LEN

from spaninfer.sizes import parse_bytes


def _engine(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Engine")


def _sampling(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Sampling")


_MODEL_HELP = (
    "A Hugging Face folder, a .gguf file, a llama2.c .bin file, or the name of a bundled model. "
    "Nothing is downloaded."
)
Model = Annotated[str, typer.Argument(help=_MODEL_HELP)]
ModelOption = Annotated[str, typer.Option("--model", help=_MODEL_HELP)]
ServedName = Annotated[
    str | None,
    typer.Option("--served-model-name", help="The name clients use; default: the folder's."),
]

BackendOption = Annotated[
    BackendName | None,
    _engine(
        "What computes. cuda: kernels of our own; cpu: numpy and Numba; torch: any torch device; "
        "reference: numpy."
    ),
]
Device = Annotated[str | None, _engine("cpu, cuda, cuda:1, …")]
DTypeOption = Annotated[
    DType | None, _engine("What to compute in; default: the checkpoint's, where the backend can.")
]
KVDTypeOption = Annotated[
    KVDType | None,
    _engine(
        "What keys and values are kept in; default: what is computed in. "
        "fp8, int8 and uint4 on backend cuda; all but fp8 on cpu."
    ),
]
QuantizeOption = Annotated[
    Quantize | None,
    _engine("Make weights bfloat16, or codes of 8 or 4 bits, while loading. Needs backend cpu."),
]
QuantizeGroup = Annotated[
    int | None,
    _engine("Channels of codes that share a scale: 32, 64 or 128; default: a whole row."),
]
MaxLen = Annotated[
    int | None, _engine("Most tokens of prompt and answer together; default: the model's own.")
]
Memory = Annotated[
    str | None,
    _engine(
        "Memory for the KV cache, such as 512MiB or 8GiB; default: measured. On CPUs it is "
        "reserved, and taken as it fills."
    ),
]
SpanLen = Annotated[int | None, _engine(f"Tokens per span of the cache; default: {SPAN_LEN}.")]
MaxRunning = Annotated[int, _engine("Most requests in one step.")]
StepTokens = Annotated[
    int | None,
    _engine(
        "Most tokens in one step; longer prompts are computed in pieces; "
        f"default: {CPU.tuning.step_tokens}, {CUDA.tuning.step_tokens} with backend cuda."
    ),
]
MaxWaiting = Annotated[int, _engine("Requests that may wait; beyond it they are refused (429).")]
StepTimeout = Annotated[
    float,
    _engine(
        "Seconds after which a step is taken to hang: the engine fails, requests are answered 503."
    ),
]
BatchInvariant = Annotated[
    bool,
    _engine(
        "The same answer to the last bit, whatever runs beside a request; slower. "
        "Needs backend cuda.",
        "--batch-invariant",
    ),
]
NoPrefixCache = Annotated[bool, _engine("Share nothing between requests.", "--no-prefix-cache")]
Graphs = Annotated[
    bool | None,
    _engine(
        "Launch decode steps as whole CUDA graphs; default: where the backend has them.",
        "--graphs/--no-graphs",
    ),
]
Spec = Annotated[
    Path | None, _engine("A spec file of your own, for an architecture that is not built in.")
]
ChatTemplate = Annotated[
    Path | None, _engine("A Jinja file that turns messages into a prompt; default: the model's.")
]

MaxTokens = Annotated[int | None, _sampling("Longest answer in tokens.")]
Temperature = Annotated[float | None, _sampling("0 takes the likeliest token.")]
TopP = Annotated[float | None, _sampling("Draw from the likeliest tokens with this much together.")]
TopK = Annotated[int | None, _sampling("Draw from this many of the likeliest tokens; 0: all.")]
Seed = Annotated[int | None, _sampling("Same seed, same text.")]


@dataclass(frozen=True, slots=True)
class Compute:
    """What computes, where, and in which numbers: fields of EngineConfig."""

    backend: BackendOption = None
    device: Device = None
    dtype: DTypeOption = None
    kv_dtype: KVDTypeOption = None
    quantize: QuantizeOption = None
    quantize_group: QuantizeGroup = None

    @property
    def asked(self) -> dict[str, Any]:
        """Fields of EngineConfig."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Cache:
    """How many tokens keys and values are kept of."""

    max_len: MaxLen = None
    memory: Memory = None
    span_len: SpanLen = None

    @property
    def asked(self) -> dict[str, Any]:
        """Fields of EngineConfig. Raises ConfigError where memory is no size."""
        return asdict(self) | {"memory": None if self.memory is None else parse_bytes(self.memory)}


@dataclass(frozen=True, slots=True)
class Draws:
    """How tokens are chosen."""

    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    seed: Seed = None

    def over(self, defaults: SamplingParams, max_tokens: int | None) -> SamplingParams:
        """Return a model's defaults with what was given on the command line on top."""
        given = asdict(self) | {"max_tokens": max_tokens}
        return replace(defaults, **{n: value for n, value in given.items() if value is not None})
