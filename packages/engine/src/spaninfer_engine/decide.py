"""From what was asked to what is done: every choice, and why. Pure functions of their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spaninfer_engine.config import Backend, Decision, DType, EngineConfig, Resolved
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.machine import Machine
from spaninfer_engine.run.memory import Demand, fit, longest, span_bytes
from spaninfer_engine.spec.nodes import Decoder, parameter_count

BACKENDS: tuple[Backend, ...] = ("cpu", "torch", "reference")
DTYPES: tuple[DType, ...] = ("float32", "bfloat16", "float16")
ITEM_BYTES: Mapping[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

# 256 decodes cost the scheduler 245 µs a step; with spans of 16 tokens, which would share a little
# more between requests, 312 µs (benchmarks/bench_scheduler.py, 2026-11-21)
SPAN_LEN = 32
MAX_SPAN_LEN = 1024
STEP_TOKENS = 512  # a prefill of 512 rows is bound by arithmetic already, and decodes wait for it
HOST_CACHE_BYTES = 4 << 30  # a server should not fill a laptop because it may


@dataclass(frozen=True, slots=True)
class Compute:
    """What computes, where, and in which numbers."""

    backend: Backend
    device: str
    dtype: DType
    decisions: tuple[Decision, ...]


def decide_compute(asked: EngineConfig, checkpoint_dtype: str, machine: Machine) -> Compute:
    """Choose backend, device and dtype; ConfigError where what was asked does not go together."""
    _check(asked)
    backend, why_backend = _backend(asked, machine)
    device, why_device = _device(asked, backend, machine)
    dtype, why_dtype = _dtype(asked, backend, checkpoint_dtype)
    decisions = (
        Decision("backend", backend, why_backend),
        Decision("device", device, why_device),
        Decision("dtype", dtype, why_dtype),
    )
    return Compute(backend, device, dtype, decisions)


def _check(asked: EngineConfig) -> None:
    """Refuse values that no machine could satisfy."""
    for name, known in (("backend", BACKENDS), ("dtype", DTYPES)):
        value = getattr(asked, name)
        if value is not None and value not in known:
            raise ConfigError(f"{name} is {value!r}; allowed are {', '.join(known)}")
    for name in ("max_len", "span_len", "memory", "max_running", "step_tokens", "max_waiting"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}; allowed is 1 or more")
    if asked.span_len is not None and asked.span_len > MAX_SPAN_LEN:
        raise ConfigError(f"span_len is {asked.span_len}; allowed is 1 to {MAX_SPAN_LEN}")


def _backend(asked: EngineConfig, machine: Machine) -> tuple[Backend, str]:
    on_gpu = asked.device is not None and asked.device != "cpu"
    if asked.backend is not None:
        if asked.backend == "torch" and not machine.has_torch:
            raise ConfigError(
                "backend torch needs torch, which is not installed: pip install 'spaninfer[torch]'"
            )
        if on_gpu and asked.backend != "torch":
            raise ConfigError(
                f"backend {asked.backend} computes on the cpu; device {asked.device} needs torch"
            )
        return asked.backend, "asked for"
    if on_gpu or (asked.device is None and machine.has_cuda):
        if not machine.has_torch:
            raise ConfigError(
                f"device {asked.device} needs torch: pip install 'spaninfer[torch]', "
                "or leave the device to us"
            )
        return "torch", "for the device"
    if asked.dtype in ("bfloat16", "float16"):
        if not machine.has_torch:
            raise ConfigError(
                f"dtype {asked.dtype} needs torch: pip install 'spaninfer[torch]', or use float32"
            )
        return "torch", f"computes in {asked.dtype}"
    return "cpu", "numpy and Numba, no GPU in use"


def _device(asked: EngineConfig, backend: Backend, machine: Machine) -> tuple[str, str]:
    if asked.device is not None:
        if asked.device.startswith("cuda") and not machine.has_cuda:
            raise ConfigError(
                f"device {asked.device} was asked for, and no CUDA device can be used: "
                "there is no NVIDIA driver, or this torch was built without CUDA"
            )
        return asked.device, "asked for"
    if backend == "torch" and machine.has_cuda:
        return "cuda", "a CUDA device is there"
    return "cpu", "the backend's only one" if backend != "torch" else "no CUDA device"


def _dtype(asked: EngineConfig, backend: Backend, checkpoint_dtype: str) -> tuple[DType, str]:
    if backend != "torch":
        if asked.dtype not in (None, "float32"):
            raise ConfigError(
                f"backend {backend} computes in float32, and dtype {asked.dtype} was asked for; "
                "choose --backend torch"
            )
        return "float32", f"what backend {backend} computes in"
    if asked.dtype is not None:
        return asked.dtype, "asked for"
    for known in DTYPES:
        if known == checkpoint_dtype:
            return known, "the checkpoint's"
    return "float32", f"the checkpoint is in {checkpoint_dtype}, which torch does not compute in"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that spans may take, and who set the limit."""

    budget: int
    why: str


def decide_budget(asked: EngineConfig, compute: Compute, available: int, share: float) -> Memory:
    """Choose how many bytes the span cache may take, of those that are available."""
    if asked.memory is not None:
        return Memory(asked.memory, "asked for")
    budget = int(available * share)
    if compute.device == "cpu" and budget > HOST_CACHE_BYTES:
        return Memory(HOST_CACHE_BYTES, "most that is taken unasked; --memory sets it")
    return Memory(budget, f"{share:.0%} of the {available / 2**30:.3g} GiB that are free")


def resolve(
    asked: EngineConfig, name: str, decoder: Decoder, compute: Compute, memory: Memory
) -> Resolved:
    """Decide the rest: lengths, spans and limits."""
    span_len = asked.span_len or SPAN_LEN
    item_bytes = ITEM_BYTES[compute.dtype]
    step_tokens = asked.step_tokens or max(STEP_TOKENS, asked.max_running)
    max_len, why_len = _max_len(asked, decoder, memory, span_len, item_bytes, step_tokens)
    demand = Demand(max_len, asked.max_running, step_tokens)
    num_spans = fit(
        decoder.groups,
        budget=memory.budget,
        span_len=span_len,
        item_bytes=item_bytes,
        demand=demand,
    )
    taken = sum(
        count * span_bytes(group, span_len, item_bytes)
        for count, group in zip(num_spans, decoder.groups, strict=True)
    )
    decisions = (
        Decision("parameters", f"{parameter_count(decoder):,}", f"{len(decoder.layers)} layers"),
        *compute.decisions,
        Decision("context", f"{max_len:,} tokens", why_len),
        Decision(
            "span cache",
            f"{taken / 2**20:,.0f} MiB",
            f"within {memory.budget / 2**20:,.0f} MiB: {memory.why}",
        ),
        Decision(
            "spans",
            " + ".join(f"{count:,}" for count in num_spans),
            f"of {span_len} tokens; {min(num_spans) * span_len / max_len:.1f} requests "
            "of full length at once",
        ),
        Decision(
            "step",
            f"{step_tokens:,} tokens, {asked.max_running} requests",
            "longer prompts are computed in pieces between decodes",
        ),
        Decision(
            "prefix cache",
            "on" if asked.prefix_cache else "off",
            "equal beginnings are computed once" if asked.prefix_cache else "asked for",
        ),
    )
    return Resolved(
        name=name,
        architecture=decoder.architecture,
        backend=compute.backend,
        device=compute.device,
        dtype=compute.dtype,
        max_len=max_len,
        span_len=span_len,
        num_spans=num_spans,
        max_running=asked.max_running,
        step_tokens=step_tokens,
        max_waiting=asked.max_waiting,
        prefix_cache=asked.prefix_cache,
        seed=asked.seed,
        decisions=decisions,
    )


def _max_len(
    asked: EngineConfig,
    decoder: Decoder,
    memory: Memory,
    span_len: int,
    item_bytes: int,
    step_tokens: int,
) -> tuple[int, str]:
    if asked.max_len is not None:
        if asked.max_len > decoder.max_len:
            raise ConfigError(
                f"max_len is {asked.max_len}; the model was made for {decoder.max_len} positions"
            )
        return asked.max_len, "asked for"
    fitting = longest(
        decoder.groups,
        budget=memory.budget,
        span_len=span_len,
        item_bytes=item_bytes,
        max_len=decoder.max_len,
        step_tokens=step_tokens,
    )
    if fitting < decoder.max_len:
        return fitting, f"what fits; the model was made for {decoder.max_len:,}"
    return decoder.max_len, "what the model was made for"


def served_name(asked: EngineConfig, checkpoint_name: str) -> str:
    """Return the name under which clients find the model."""
    return asked.served_name or checkpoint_name


def checkpoint_dtype(config: Mapping[str, Any]) -> str:
    """Return the dtype that a config.json names, in either of its spellings; float32 if none."""
    for part in (config, config.get("text_config") or {}):
        for key in ("dtype", "torch_dtype"):
            if isinstance(said := part.get(key), str):
                return said.removeprefix("torch.")
    return "float32"
