"""What computes, where, and in which numbers: from what was asked and what is there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spaninfer_engine.config import (
    Backend,
    Decision,
    DType,
    EngineConfig,
    KVDType,
    Quantize,
    Weights,
)
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.startup.hardware import Machine

BACKENDS: tuple[Backend, ...] = ("cuda", "cpu", "torch", "reference")
DTYPES: tuple[DType, ...] = ("float32", "bfloat16", "float16")
WEIGHTS: tuple[Weights, ...] = ("checkpoint", "dummy")
QUANTIZE: tuple[Quantize, ...] = ("bfloat16", "int8", "int4")
CODES = QUANTIZE[1:]
QUANTIZE_GROUPS = (32, 64, 128)
KV_DTYPES: tuple[KVDType, ...] = ("float32", "bfloat16", "float16", "fp8", "int8", "uint4")
KV_DTYPES_ON: Mapping[Backend, tuple[KVDType, ...]] = {
    "cuda": ("fp8", "int8", "uint4"),
    "cpu": ("float32", "bfloat16", "float16", "int8", "uint4"),
}

MAX_SPAN_LEN = 1024
LEAST_CUDA_SPAN_LEN = 16  # and a power of two: what the kernels address
LEAST_CAPABILITY = (7, 5)  # Turing, the oldest that there are kernels for
BFLOAT16_CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True)
class Compute:
    """What computes, where, and in which numbers."""

    backend: Backend
    device: str
    dtype: DType
    decisions: tuple[Decision, ...]


def decide_compute(
    asked: EngineConfig, checkpoint_dtype: str, machine: Machine, *, packed: bool = False
) -> Compute:
    """Choose backend, device and dtype; ConfigError where what was asked does not go together.

    `packed`: weights come from a file of `convert`, and `asked` is what `packing.as_packed` says.
    """
    _check(asked)
    backend, why_backend = _backend(asked, checkpoint_dtype, machine)
    why_backend = "what the weights were packed for" if packed else why_backend
    device, why_device = _device(asked, backend, machine)
    dtype, why_dtype = _dtype(asked, backend, checkpoint_dtype, machine)
    if backend == "cuda":
        _check_cuda(asked, dtype, machine)
    allowed = KV_DTYPES_ON.get(backend, ())
    if asked.kv_dtype is not None and asked.kv_dtype not in allowed:
        raise ConfigError(
            f"backend {backend} does not keep keys and values in {asked.kv_dtype}, but "
            f"{', '.join(('as they are computed', *allowed))}; leave kv_dtype out, or choose one"
        )
    if asked.batch_invariant and backend != "cuda":
        raise ConfigError(
            f"batch_invariant needs backend cuda, and this is backend {backend}; the libraries "
            "that the others multiply with choose by the number of rows in what order they add"
        )
    _check_quantize(asked, backend)
    decisions = (
        Decision("backend", backend, why_backend),
        Decision("device", device, why_device),
        Decision("dtype", dtype, why_dtype),
        *([Decision("keys, values", asked.kv_dtype, "asked for")] if asked.kv_dtype else []),
        *([Decision("weights", asked.quantize, _scales(asked, packed))] if asked.quantize else []),
        *([_INVARIANT] if asked.batch_invariant else []),
    )
    return Compute(backend, device, dtype, decisions)


_INVARIANT = Decision("batch invariant", "yes", "asked for: slower, equal to the last bit")


def refuse_varying(steps: Iterable[str]) -> None:
    """Raise ConfigError for steps of a program whose rows depend on what is beside them."""
    if varying := sorted(_VARYING & set(steps)):
        raise ConfigError(
            f"batch_invariant was asked for, and this model needs {', '.join(varying)}, whose "
            "kernels choose by the number of rows in what order they add; leave it out"
        )


_VARYING = frozenset({"head_linear", "plain_attention", "plain_experts", "router"})


def _check(asked: EngineConfig) -> None:
    """Refuse values that no machine could satisfy."""
    for name, known in (
        ("backend", BACKENDS),
        ("dtype", DTYPES),
        ("kv_dtype", KV_DTYPES),
        ("weights", WEIGHTS),
        ("quantize", QUANTIZE),
        ("quantize_group", QUANTIZE_GROUPS),
    ):
        value = getattr(asked, name)
        if value is not None and value not in known:
            raise ConfigError(f"{name} is {value!r}; allowed are {', '.join(map(str, known))}")
    for name in ("max_len", "span_len", "memory", "max_running", "step_tokens", "max_waiting"):
        value = getattr(asked, name)
        if value is not None and not (hasattr(value, "__index__") and value >= 1):
            raise ConfigError(f"{name} is {value!r}; allowed is a whole number, 1 or more")
    if asked.span_len is not None and asked.span_len > MAX_SPAN_LEN:
        raise ConfigError(f"span_len is {asked.span_len}; allowed is 1 to {MAX_SPAN_LEN}")


def _backend(asked: EngineConfig, checkpoint_dtype: str, machine: Machine) -> tuple[Backend, str]:
    on_gpu = asked.device is not None and asked.device != "cpu"
    if asked.backend is not None:
        if asked.backend in ("torch", "cuda") and not machine.has_torch:
            raise ConfigError(
                f"backend {asked.backend} needs torch, which is not installed: "
                f"pip install 'spaninfer[{asked.backend}]'"
            )
        if on_gpu and asked.backend not in ("torch", "cuda"):
            raise ConfigError(
                f"backend {asked.backend} computes on the cpu; device {asked.device} needs "
                "--backend cuda or torch"
            )
        return asked.backend, "asked for"
    if on_gpu or (asked.device is None and machine.has_cuda):
        if not machine.has_torch:
            raise ConfigError(
                f"device {asked.device} needs torch: pip install 'spaninfer[torch]', "
                "or leave the device to us"
            )
        return _on_gpu(asked, checkpoint_dtype, machine)
    if asked.dtype == "float16":
        if not machine.has_torch:
            raise ConfigError(
                f"dtype {asked.dtype} needs torch: pip install 'spaninfer[torch]', or use float32"
            )
        return "torch", f"computes in {asked.dtype}"
    return "cpu", "numpy and Numba, no GPU in use"


def _on_gpu(asked: EngineConfig, checkpoint_dtype: str, machine: Machine) -> tuple[Backend, str]:
    """Choose between our kernels and plain torch, which serves whatever they do not."""
    dtype = asked.dtype or checkpoint_dtype
    if dtype not in ("bfloat16", "float16"):
        return "torch", f"the kernels of backend cuda compute in 16 bits, not in {dtype}"
    if not machine.has_kernels:
        return "torch", "for the device; pip install 'spaninfer[cuda]' brings faster kernels"
    if machine.capability < (BFLOAT16_CAPABILITY if dtype == "bfloat16" else LEAST_CAPABILITY):
        return "torch", f"the GPU is too old for kernels in {dtype}"
    if asked.span_len is not None and not _suits_cuda(asked.span_len):
        return "torch", f"the kernels of backend cuda do not take spans of {asked.span_len} tokens"
    return "cuda", "a CUDA device is there, and kernels for it"


def _check_cuda(asked: EngineConfig, dtype: DType, machine: Machine) -> None:
    """Refuse what the CUDA backend, asked for by name, cannot do."""
    if not machine.has_kernels:
        raise ConfigError(
            "backend cuda needs kernels that are not installed: pip install 'spaninfer[cuda]'"
        )
    least = BFLOAT16_CAPABILITY if dtype == "bfloat16" else LEAST_CAPABILITY
    if machine.capability < least:
        raise ConfigError(
            f"backend cuda in {dtype} needs compute capability {least[0]}.{least[1]}, and the GPU "
            f"has {machine.capability[0]}.{machine.capability[1]}; choose --backend torch"
        )
    if asked.span_len is not None and not _suits_cuda(asked.span_len):
        raise ConfigError(
            f"span_len is {asked.span_len}; backend cuda takes powers of two from "
            f"{LEAST_CUDA_SPAN_LEN} to {MAX_SPAN_LEN}"
        )


def _check_quantize(asked: EngineConfig, backend: Backend) -> None:
    """Refuse what no kernel reads."""
    if asked.quantize_group is not None and asked.quantize not in CODES:
        raise ConfigError(
            "quantize_group was asked for without codes that share a scale; quantize to "
            f"{' or '.join(CODES)}, or leave it out"
        )
    if asked.quantize is not None and backend != "cpu":
        raise ConfigError(
            f"quantize {asked.quantize} needs backend cpu, and this is backend {backend}; "
            "choose --backend cpu, or leave quantize out"
        )


def _scales(asked: EngineConfig, packed: bool) -> str:
    why = "packed" if packed else "asked for"
    if asked.quantize not in CODES:
        return f"{why}: rounded from what is stored"
    per = "row" if asked.quantize_group is None else f"{asked.quantize_group} channels"
    return f"{why}: codes with a scale per {per}"


def _suits_cuda(span_len: int) -> bool:
    return span_len >= LEAST_CUDA_SPAN_LEN and span_len & (span_len - 1) == 0


def _device(asked: EngineConfig, backend: Backend, machine: Machine) -> tuple[str, str]:
    if backend == "cuda" and asked.device == "cpu":
        raise ConfigError("backend cuda computes on a GPU, and device cpu was asked for")
    if not machine.has_cuda:
        wanted = "backend cuda" if backend == "cuda" else f"device {asked.device}"
        if backend == "cuda" or (asked.device or "").startswith("cuda"):
            raise ConfigError(
                f"{wanted} was asked for, and no CUDA device can be used: "
                "there is no NVIDIA driver, or this torch was built without CUDA"
            )
    if asked.device is not None:
        return asked.device, "asked for"
    if backend in ("torch", "cuda") and machine.has_cuda:
        return "cuda", "a CUDA device is there"
    return "cpu", "the backend's only one" if backend != "torch" else "no CUDA device"


def _dtype(
    asked: EngineConfig, backend: Backend, checkpoint_dtype: str, machine: Machine
) -> tuple[DType, str]:
    if backend == "cuda":
        return _cuda_dtype(asked, checkpoint_dtype, machine)
    if backend == "cpu" and asked.dtype == "bfloat16":
        return asked.dtype, "asked for: what products see of activations"
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


def _cuda_dtype(asked: EngineConfig, checkpoint_dtype: str, machine: Machine) -> tuple[DType, str]:
    if asked.dtype == "float32":
        raise ConfigError(
            "backend cuda computes in bfloat16 and float16, and dtype float32 was asked for; "
            "choose --backend torch"
        )
    if asked.dtype is not None:
        return asked.dtype, "asked for"
    if checkpoint_dtype == "float16":
        return "float16", "the checkpoint's"
    if machine.capability < BFLOAT16_CAPABILITY:
        return "float16", f"the checkpoint is in {checkpoint_dtype}, the GPU too old for bfloat16"
    if checkpoint_dtype == "bfloat16":
        return "bfloat16", "the checkpoint's"
    return "bfloat16", f"the checkpoint is in {checkpoint_dtype}, backend cuda in 16 bits"


def checkpoint_dtype(config: Mapping[str, Any]) -> str:
    """Return the dtype that a config.json names, in either of its spellings; float32 if none."""
    text_config = config.get("text_config")
    for part in (config, text_config if isinstance(text_config, dict) else {}):
        for key in ("dtype", "torch_dtype"):
            if isinstance(said := part.get(key), str):
                return said.removeprefix("torch.")
    return "float32"
