"""The choice of backend, device and dtype, from the options and the hardware. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spaninfer_engine.backends.backend import Backend
from spaninfer_engine.backends.hardware import Machine
from spaninfer_engine.backends.registry import BACKENDS, choose_backend, choose_device, device_named
from spaninfer_engine.config import Decision, DType, EngineConfig, Quantize
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load.packed.packing import GROUPED, number_bits, packing_of
from spaninfer_engine.ops.bound import Result
from spaninfer_engine.startup.option_values import check_values


@dataclass(frozen=True, slots=True)
class Compute:
    """The chosen backend, device and dtypes."""

    backend: Backend
    device: str
    dtype: DType
    decisions: tuple[Decision, ...]


def decide_compute(
    asked: EngineConfig,
    checkpoint_dtype: str,
    machine: Machine,
    *,
    packed: bool = False,
    result: Result = Result.LOGITS,
) -> Compute:
    """Choose backend, device and dtype; ConfigError where what was asked does not go together.

    `packed`: weights come from a file of `convert`, and `asked` is what `packing.as_packed` says.
    `result` is the kind of array that the model's program returns.
    """
    check_values(asked)
    asked = replace(asked, device=device_named(asked.device))
    backend, why_backend = choose_backend(asked, checkpoint_dtype, machine, result)
    why_backend = "what the weights were packed for" if packed else why_backend
    device, why_device = choose_device(asked, backend, machine)
    dtype, why_dtype = backend.choose_dtype(asked, checkpoint_dtype, machine)
    backend.check(asked, dtype, machine)
    _check_options(asked, backend)
    _check_quantize(asked, backend, result)
    decisions = (
        Decision("backend", backend.name, why_backend),
        Decision("device", device, why_device),
        Decision("dtype", dtype, why_dtype),
        *([Decision("KV cache", asked.kv_dtype, "requested")] if asked.kv_dtype else []),
        *_weights(asked, backend, dtype, packed),
        *([_INVARIANT] if asked.batch_invariant else []),
    )
    return Compute(backend, device, dtype, decisions)


_INVARIANT = Decision("batch invariant", "yes", "requested: slower, equal to the last bit")


def _check_options(asked: EngineConfig, backend: Backend) -> None:
    """Refuse options that the backend does not have."""
    if asked.kv_dtype is not None and asked.kv_dtype not in backend.kv_dtypes:
        raise ConfigError(
            f"backend {backend.name} does not store its KV cache in {asked.kv_dtype}, but "
            f"{', '.join(('as they are computed', *backend.kv_dtypes))}; omit kv_dtype, "
            "or choose one"
        )
    if asked.batch_invariant and not backend.is_invariant:
        raise ConfigError(
            f"batch_invariant requires --backend {_those_with('is_invariant')} (got "
            f"{backend.name}): other backends' matmul libraries change their summation order with "
            "batch size"
        )
    if asked.graphs and not backend.has_graphs:
        raise ConfigError(
            f"graphs requires --backend {_those_with('has_graphs')} (got {backend.name}); or leave "
            "graphs out"
        )
    if asked.tune and not backend.can_tune:
        raise ConfigError(
            f"tune requires --backend {_those_with('can_tune')} (got {backend.name}); or leave "
            "tune out"
        )
    refuse_group(asked)
    if asked.keep_head and asked.quantize is None:
        raise ConfigError("keep_head only applies to quantize; add --quantize or drop --keep-head")
    if asked.keep_head and not backend.can_keep_head:
        raise ConfigError(
            f"keep_head requires --backend {_those_with('can_keep_head')} (got {backend.name}); or "
            "leave keep_head out"
        )


_HOW_SUMMED: Mapping[Quantize, str] = {
    "w13a13": "in 32 bits",
    "w4afp8": "in the 14 bits of FP8's tensor cores",
}
"""Formats whose groups are no whole row, because products are summed in few bits."""


def refuse_group(asked: EngineConfig) -> None:
    """Raise ConfigError for a group of weights that share no scales in groups."""
    if asked.quantize_group is not None and asked.quantize not in GROUPED:
        raise ConfigError(
            f"quantize_group only applies to {' and '.join(GROUPED)}; add --quantize "
            f"{'|'.join(GROUPED)} or drop --quantize-group"
        )
    how = None if asked.quantize is None else _HOW_SUMMED.get(asked.quantize)
    if how is not None and asked.quantize_group == "row":
        raise ConfigError(
            f"quantize_group is 'row' for {asked.quantize}, whose products of 128 channels at most "
            f"are summed {how}; choose 32, 64 or 128, or leave quantize_group out"
        )


def _check_quantize(asked: EngineConfig, backend: Backend, result: Result) -> None:
    """Refuse formats that the backend does not round this kind of model to."""
    if asked.quantize is None or asked.quantize in backend.quantizes_for(result):
        return
    able = " or ".join(
        each.name for each in BACKENDS.values() if asked.quantize in each.quantizes_for(result)
    )
    what = f"{'an encoder in ' if result is Result.VECTORS else ''}quantize {asked.quantize}"
    if not able:
        raise ConfigError(f"{what} is supported by no backend; leave quantize out")
    raise ConfigError(
        f"{what} requires --backend {able} (got {backend.name}); or leave quantize out"
    )


def _those_with(ability: str) -> str:
    return " or ".join(name for name, each in BACKENDS.items() if getattr(each, ability))


def _weights(
    asked: EngineConfig, backend: Backend, dtype: DType, packed: bool
) -> tuple[Decision, ...]:
    """Return what weights are rounded to while loading, if they are."""
    if asked.quantize is None:
        return ()
    held, why = backend.rounded_bits(asked.quantize, dtype), _scales(asked, packed)
    if held != number_bits(asked.quantize):
        why += f"; held in {held:g} bits"
    return (Decision("weights", asked.quantize, why),)


def _scales(asked: EngineConfig, packed: bool) -> str:
    why = "packed" if packed else "requested"
    head = ", the head in 16 bits" if asked.keep_head else ""
    if asked.quantize not in GROUPED:
        return f"{why}: rounded from what is stored{head}"
    group = packing_of(asked.quantize, asked.quantize_group).group
    each = "row" if group is None else f"group of {group} channels"
    return f"{why}: one scale per {each}{head}"
