"""Memory of weights and of a step, estimated before anything is read. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from spaninfer_op_reference import WeightFormat

from spaninfer_engine.cache.memory_plan import gib
from spaninfer_engine.config import EngineConfig, Quantize
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load.packed.packing import WIDE_NAMES, packing_of, parameter_bits
from spaninfer_engine.spec.nodes import Decoder, Encoder, Model
from spaninfer_engine.spec.pooling_nodes import LogitScore
from spaninfer_engine.spec.tree import parameter_count, weights
from spaninfer_engine.spec.weight_nodes import Weight
from spaninfer_engine.startup.compute import Compute
from spaninfer_engine.startup.limits import STORED, decide_demand

_MAX_CODE_BITS = 8  # wider ones are numbers, which have no scales, but for WIDE_NAMES


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """A checkpoint's weights: their type, whether files hold them as they are used (`mapped`), and
    the formats of quantised ones by name.
    """

    dtype: str = "float32"
    mapped: bool = False
    formats: Mapping[str, WeightFormat] = field(default_factory=dict)


def refuse_oversized(
    asked: EngineConfig,
    compute: Compute,
    model: Model,
    available: int,
    stored: StoredWeights,
) -> None:
    """Raise ConfigError for a model that `available` bytes do not hold, before it takes any."""
    taken = 0 if stored.mapped else estimated_weight_bytes(asked, compute, model, stored)
    rows = estimated_step_bytes(asked, compute, model) if compute.device == "cpu" else 0
    if taken + rows > available:
        largest = max(weights(model), key=lambda weight: prod(weight.shape))
        raise ConfigError(
            f"the model's {parameter_count(model):,} parameters take {gib(taken)} and a step "
            f"{gib(rows)} at least, and {gib(available)} of memory are free; the largest weight is "
            f"{largest.name} {list(largest.shape)}; quantize the weights, lower --step-tokens or "
            "--max-running, or choose a smaller model"
        )


def estimated_weight_bytes(
    asked: EngineConfig, compute: Compute, model: Model, stored: StoredWeights
) -> int:
    """Return the bytes of the weights that are held from the start, before they are read."""
    packing = packing_of(asked.quantize, asked.quantize_group)
    bits = weight_bits(asked, compute, stored.dtype)
    if asked.quantize and packing.group is not None and _are_codes(asked.quantize, bits):
        bits += parameter_bits(asked.quantize) / packing.group
    as_stored = weight_bits(replace(asked, quantize=None), compute, stored.dtype)
    kept = {} if asked.quantize else _kept_bits(compute, stored.formats)
    table = model.embedding.table.name  # rows are looked up in it, so it is not rounded

    def taken(weight: Weight) -> float:
        known = kept.get(weight.name, as_stored if weight.name == table else bits)
        return prod(weight.shape) * known / 8

    held = sum(map(taken, _held(asked, model, stored.formats)))
    is_packed = bool(asked.quantize) or (compute.device == "cpu" and table not in kept)
    if is_packed and isinstance(model, Decoder) and model.head.tied:
        held += prod(model.embedding.table.shape) * bits / 8  # a head of its own beside the table
    return int(held)


def estimated_step_bytes(asked: EngineConfig, compute: Compute, model: Model) -> int:
    """Return the bytes of the widest activations of the largest step, and of its logits."""
    demand = decide_demand(asked, compute, model)
    logits = demand.max_running * model.vocab if isinstance(model, Decoder) else 0
    wide = (each.shape[-2] for each in weights(model.layers) if len(each.shape) > 1)
    return 4 * (demand.step_tokens * max(wide, default=0) + logits)


def weight_bits(asked: EngineConfig, compute: Compute, stored_as: str) -> float:
    """Return the bits of a weight's number as the backend holds it."""
    if asked.quantize is not None:
        return compute.backend.rounded_bits(asked.quantize, compute.dtype)
    stored_bits = 16 if stored_as in ("bfloat16", "float16") else 32
    return min(stored_bits, STORED[compute.dtype].bits)


def _are_codes(quantize: Quantize, bits: float) -> bool:
    """Return True if weights that are held in so many bits have scales."""
    return bits <= _MAX_CODE_BITS or quantize in WIDE_NAMES


def _kept_bits(compute: Compute, formats: Mapping[str, WeightFormat]) -> dict[str, float]:
    """Return the bits of weights that the backend multiplies as codes, by name."""
    known = {format: compute.backend.kept_bits(format) for format in set(formats.values())}
    return {name: bits for name, each in formats.items() if (bits := known[each]) is not None}


def _held(
    asked: EngineConfig, model: Model, formats: Mapping[str, WeightFormat]
) -> Iterator[Weight]:
    """Yield the weights that take memory from the start: not a table that is read where it is
    stored, not towers, which are read when the first media come, and not the head of a reranker, of
    which two rows are read.
    """
    if isinstance(model, Encoder):
        kept = tuple(layer for layer in model.head if not isinstance(layer, LogitScore))
        model = replace(model, head=kept)
    tied = isinstance(model, Decoder) and model.head.tied
    in_place = asked.weights != "dummy" and not tied and model.embedding.table.name not in formats
    towers = set(weights(model.towers)) if isinstance(model, Decoder) else set()
    for weight in weights(model):
        if weight not in towers and not (in_place and weight == model.embedding.table):
            yield weight
