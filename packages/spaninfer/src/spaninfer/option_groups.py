"""Options that belong together, as one parameter of the commands that have them (`grouped`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from spaninfer_engine import ConfigError, Engine, SamplingParams, StructuredOutput
from spaninfer_engine.tools import QuantizeGroup

from spaninfer import options, show
from spaninfer.threads import keep_to

GROUPS: Mapping[options.GroupName | None, QuantizeGroup | None] = {
    None: None, "32": 32, "64": 64, "128": 128, "row": "row"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantisation:
    """The format that weights are quantised to while loading."""

    quantize: options.QuantizeOption = None
    quantize_group: options.QuantizeGroupOption = None

    @property
    def asked(self) -> dict[str, Any]:
        """Fields of EngineConfig."""
        return {"quantize": self.quantize, "quantize_group": GROUPS[self.quantize_group]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Backend, device and dtypes."""

    backend: options.BackendOption = None
    device: options.Device = None
    dtype: options.DTypeOption = None
    kv_dtype: options.KVDTypeOption = None
    quantisation: Quantisation
    keep_head: options.KeepHead = False

    @property
    def asked(self) -> dict[str, Any]:
        """Fields of EngineConfig."""
        return {
            "backend": self.backend,
            "device": self.device,
            "dtype": self.dtype,
            "kv_dtype": self.kv_dtype,
            **self.quantisation.asked,
            "keep_head": self.keep_head,
        }


@dataclass(frozen=True, slots=True)
class Cache:
    """Size of the KV cache."""

    max_len: options.MaxLen = None
    memory: options.Memory = None
    encoder_memory: options.EncoderMemory = None
    span_len: options.SpanLen = None

    @property
    def asked(self) -> dict[str, Any]:
        """Fields of EngineConfig."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A model's place on this machine: CPUs, what computes and in which dtypes, the KV cache."""

    threads: options.Threads = None
    compute: Compute
    cache: Cache

    @property
    def asked(self) -> dict[str, Any]:
        """Fields of EngineConfig."""
        return {**self.compute.asked, **self.cache.asked}

    def keep_to_threads(self) -> None:
        """Keep this process to as many CPUs as requested; ConfigError where it cannot."""
        if self.threads is not None:
            keep_to(self.threads)


@dataclass(frozen=True, slots=True)
class Steps:
    """The size of a step, and how it is computed."""

    step_tokens: options.StepTokens = None
    graphs: options.Graphs = None
    batch_invariant: options.BatchInvariant = False

    @property
    def asked(self) -> dict[str, Any]:
        """Fields of EngineConfig."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Tiers:
    """The tiers that keep prefixes after they leave the KV cache."""

    kv_offload: options.KVOffloadSize = None
    kv_disk: options.KVDisk = None
    kv_disk_size: options.KVDiskSize = None
    kv_ttl_s: options.KVTtl = None

    @property
    def asked(self) -> dict[str, Any]:
        """Fields of EngineConfig."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters of answers."""

    max_tokens: options.MaxTokens = None
    temperature: options.Temperature = None
    top_p: options.TopP = None
    top_k: options.TopK = None
    seed: options.Seed = None

    def over(self, engine: Engine, form: StructuredOutput | None = None) -> SamplingParams:
        """Return a model's defaults with what was given on the command line on top.

        Warns where an answer cannot become as long as that.
        """
        if self.max_tokens is not None and self.max_tokens > engine.context:
            show.warning(
                f"--max-tokens is {self.max_tokens}, but the context has {engine.context} "
                "tokens for prompt and answer together: longer answers are cut there"
            )
        given: dict[str, Any] = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
            "structured": form,
        }
        return replace(
            engine.default_sampling, **{n: value for n, value in given.items() if value is not None}
        )


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The constraint on an answer's form."""

    json_schema: options.JsonSchemaFile = None
    regex: options.Regex = None

    def read(self) -> StructuredOutput | None:
        """Return the form; None for any. ConfigError where its file cannot be read."""
        if self.json_schema is None and self.regex is None:
            return None
        schema = None if self.json_schema is None else _text_of(self.json_schema)
        return StructuredOutput(json_schema=schema, regex=self.regex)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(Sampling):
    """Sampling parameters of a prompt's continuation, and the constraint on its form."""

    max_tokens: options.MaxTokens = 128
    form: AnswerForm


def as_arguments(asked: Mapping[str, Any]) -> list[str]:
    """Return options as a command line has them; None and False are left out.

    >>> as_arguments({"backend": "cpu", "kv_dtype": None, "quantize_group": 32, "keep_head": True})
    ['--backend=cpu', '--quantize-group=32', '--keep-head']
    """
    given = {
        f"--{name.replace('_', '-')}": value
        for name, value in asked.items()
        if value is not None and value is not False
    }
    return [name if value is True else f"{name}={value}" for name, value in given.items()]


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as reason:
        raise ConfigError(f"{path} cannot be read: {reason.strerror}") from reason
    except UnicodeDecodeError as reason:
        raise ConfigError(f"{path} is not text in UTF-8: {reason}") from reason
