"""The options that several commands share, with the words that --help prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from spaninfer_engine.tools import (
    CPU,
    CUDA,
    SPAN_LEN,
    BackendName,
    DType,
    KVDType,
    Quantize,
    Weights,
)


def _engine(text: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=text, metavar=metavar, rich_help_panel="Engine")


def _one_of(text: str, names: Any) -> Any:
    """Return an option whose help lists its values: as a column of their own they leave the help
    no room in a terminal of 80 columns."""
    return _engine(f"{', '.join(get_args(names))}. {text}", metavar="<name>")


def _sampling(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Sampling")


_MODEL_HELP = (
    "A Hugging Face folder, a .gguf file, a llama2.c .bin file, the name of a bundled model, or "
    "ORG/NAME of the hub, which is fetched once if it is not in the cache."
)
Model = Annotated[str, typer.Argument(help=_MODEL_HELP)]
ServedNames = Annotated[
    list[str] | None,
    typer.Option(
        "--served-model-name",
        help="A name of the model for clients; may be repeated; default: the folder's name.",
    ),
]

BackendOption = Annotated[
    BackendName | None,
    _engine(
        "cuda: our kernels for NVIDIA GPUs; cpu: numpy and Numba; torch: any torch device; "
        "reference: numpy. Default: the fastest that runs here.",
        metavar="<name>",
    ),
]
Device = Annotated[str | None, _engine("cpu, cuda (or gpu), cuda:1, …")]
KeepHead = Annotated[
    bool,
    _engine(
        "With --quantize: keep the head, which makes logits, in 16 bits, as published models have "
        "it. Needs backend cuda.",
        "--keep-head",
    ),
]
Threads = Annotated[int | None, _engine("Number of CPUs to use; default: all usable ones.")]
ApiServerCount = Annotated[
    int | None,
    typer.Option(
        help="Processes that answer HTTP requests in front of the engine's process; 0: the "
        "engine's process does. Default: 1 with two CPUs or more, else 0. When more pay "
        "off: docs/guides/serve.md."
    ),
]
DTypeOption = Annotated[
    DType | None,
    _one_of("Format to compute in; default: the checkpoint's, where the backend can.", DType),
]
KVDTypeOption = Annotated[
    KVDType | None,
    _one_of(
        "Format of the KV cache; default: that of the computation. fp8 needs backend cuda, int8 "
        "and uint4 need cuda or cpu.",
        KVDType,
    ),
]
QuantizeOption = Annotated[
    Quantize | None,
    _one_of(
        "Quantise weights while loading: fp8, w8a8 and w4afp8 (int4 with activations in FP8) on "
        "backend cuda; bfloat16, w8a16 (int8 with activations in 16 bits), w13a13 (13 bits of "
        "both: float32's vectors of an encoder, faster) and w7a7 (181 levels of both) on cpu; int8 "
        "to int2, and iq4_nl (uneven levels, more exact than int4; 8 bits on cuda), on all, where "
        "torch and reference keep the rounded numbers and save no memory.",
        Quantize,
    ),
]
GroupName = Literal["32", "64", "128", "row"]
QuantizeGroupOption = Annotated[
    GroupName | None,
    _one_of(
        "Number of channels that share a scale; default: 32, of w13a13 64, of w4afp8 128.",
        GroupName,
    ),
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
EncoderMemory = Annotated[
    str | None,
    _engine("Memory for encodings of images, video and audio; default: up to 512MiB."),
]
SpanLen = Annotated[
    int | None,
    _engine(f"Tokens per span (a block, or page, of the KV cache); default: {SPAN_LEN}."),
]
KVOffloadSize = Annotated[
    str | None,
    _engine(
        "Host memory for prefixes that leave the KV cache, such as 8GiB. Needs a GPU, or --kv-disk."
    ),
]
KVDisk = Annotated[
    Path | None, _engine("A folder for prefixes, which a later start finds there again.")
]
KVDiskSize = Annotated[str | None, _engine("Most bytes of files in it; default: 10GiB.")]
KVTtl = Annotated[
    float | None,
    _engine(
        "Seconds after its last use in which a prefix is gone from host memory and disk; "
        "default: none, until room is needed.",
        "--kv-ttl",
    ),
]
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
Tune = Annotated[
    bool | None,
    _engine(
        "Time CPU kernels at the first start, for 10 s at most, and keep the fastest; "
        "default: for models of 64 MiB and more.",
        "--tune/--no-tune",
    ),
]
Spec = Annotated[
    Path | None, _engine("A spec file of your own, for an architecture that is not built in.")
]
ChatTemplate = Annotated[
    Path | None, _engine("A Jinja file that turns messages into a prompt; default: the model's.")
]

MaxTokens = Annotated[
    int | None, _sampling("Most tokens of an answer; the end of the context ends one sooner.")
]
Temperature = Annotated[float | None, _sampling("0: greedy.")]
TopP = Annotated[
    float | None,
    _sampling("Sample from the most probable tokens with this much probability together."),
]
TopK = Annotated[
    int | None, _sampling("Sample from this many of the most probable tokens; 0: all.")
]
Seed = Annotated[int | None, _sampling("Same seed, same text.")]
JsonSchemaFile = Annotated[
    Path | None, _sampling("A JSON schema that the answer follows, as a file.")
]
Regex = Annotated[str | None, _sampling("A regular expression that the whole answer matches.")]

WhichWeights = Annotated[
    Weights,
    typer.Option(
        help="dummy: random weights, for measurements; the folder needs config.json only."
    ),
]
