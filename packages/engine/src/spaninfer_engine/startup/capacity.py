"""The capacity of a memory for a model: how many requests fit, of which lengths. Nothing is loaded.

What a start measures is estimated here: weights from their shapes, steps from the widest of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from spaninfer_engine.backends.hardware import Machine
from spaninfer_engine.cache.memory_plan import (
    STATES_PER_REQUEST,
    Demand,
    Stored,
    longest,
    span_bytes,
    spans_per_request,
)
from spaninfer_engine.config import EngineConfig, KVDType, Quantize
from spaninfer_engine.errors import ConfigError, NotBuilt
from spaninfer_engine.load import Checkpoint
from spaninfer_engine.load.packed.file import PackedReader
from spaninfer_engine.load.packed.packing import as_packed
from spaninfer_engine.load.tensors.dtype import checkpoint_dtype
from spaninfer_engine.spec.nodes import Decoder
from spaninfer_engine.spec.tree import parameter_count, weights
from spaninfer_engine.startup.compute import Compute, decide_compute
from spaninfer_engine.startup.limits import SPAN_LEN, STORED, decide_demand, stored_cache
from spaninfer_engine.startup.model import resolve_model
from spaninfer_engine.startup.weight_formats import formats_of
from spaninfer_engine.startup.weight_memory import (
    StoredWeights,
    estimated_step_bytes,
    estimated_weight_bytes,
)

KV_SHARE = 0.9
"""Share of what is left that the KV cache may take; fragments and libraries have the rest."""

GPU_BYTES = 3 << 29
"""What CUDA's context, loaded kernels and captured graphs take; an H200 measured 1 to 1.5 GiB."""


@dataclass(frozen=True, slots=True)
class Place:
    """The memory that weights, steps and KV cache share, and the machine that it belongs to."""

    machine: Machine
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Room:
    """The room that weights in one format leave for requests.

    quantize      the format of `--quantize`; None: as the checkpoint holds them
    backend       the one that would compute it
    weight_bytes  of all weights, as the backend holds them
    step_bytes    of activations and logits in the largest step; on a GPU its context and graphs too
    kv_bytes      what is left for the KV cache; negative: so much is missing
    requests      requests at once, by the tokens that each has
    longest       the most tokens of one request, at most the model's context; 0: none fits
    """

    quantize: Quantize | None
    backend: str
    weight_bytes: int
    step_bytes: int
    kv_bytes: int
    requests: Mapping[int, int]
    longest: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """The part of a model that a memory holds, format by format.

    token_bytes  of the KV cache, for one token of a long context
    state_bytes  of a request besides, whatever its length: states of linear attention
    """

    architecture: str
    parameters: int
    context: int
    kv_dtype: KVDType
    token_bytes: int
    state_bytes: int
    rooms: tuple[Room, ...]


def capacity(
    asked: EngineConfig, checkpoint: Checkpoint, place: Place, lengths: Sequence[int]
) -> Capacity:
    """Return what fits in a place: in the requested format or, without one, in each usual format.

    Lengths above the model's context are taken for it. Raises ConfigError and CheckpointError as a
    start does, NotBuilt for models without a KV cache.
    """
    if isinstance(checkpoint.reader, PackedReader):
        asked = as_packed(asked, checkpoint.reader.packing)
    if not checkpoint.reader.names:
        asked = replace(asked, weights="dummy")
    model = _decoder_of(asked, checkpoint)
    of = _Measure(checkpoint, model, place)
    computes = [(each, of.compute(each)) for each in _choices(asked, of)]
    first = computes[0][1]
    kv_dtype, stored = asked.kv_dtype or first.dtype, stored_cache(asked, first)
    return Capacity(
        architecture=model.architecture,
        parameters=parameter_count(model),
        context=model.max_len,
        kv_dtype=kv_dtype,
        token_bytes=_token_bytes(model, stored),
        state_bytes=_state_bytes(model, stored),
        rooms=tuple(
            of.room(each, compute, sorted({min(length, model.max_len) for length in lengths}))
            for each, compute in computes
        ),
    )


def _decoder_of(asked: EngineConfig, checkpoint: Checkpoint) -> Decoder:
    """Return the model of a checkpoint; raises where its memory cannot be known."""
    model = resolve_model(asked, checkpoint)
    if not isinstance(model, Decoder):
        raise NotBuilt(
            f"{checkpoint.path} holds an encoder ({model.architecture}), whose requests keep "
            "nothing between steps; its weights and one step are all that it takes"
        )
    if "quantization_config" in checkpoint.config and not checkpoint.reader.names:
        raise ConfigError(
            f"{checkpoint.path} has quantised weights, whose sizes are in their files, and these "
            "are not here; fetch the model first (spaninfer pull)"
        )
    return model


def _token_bytes(model: Decoder, stored: Stored) -> int:
    """Return the bytes of the KV cache that every token of a request takes."""
    return sum(
        span_bytes(group, SPAN_LEN, stored) // SPAN_LEN
        for group in model.groups
        if group.window is None and group.state is None
    )


def _state_bytes(model: Decoder, stored: Stored) -> int:
    """Return the bytes of states that a request takes, however long it is."""
    return sum(
        STATES_PER_REQUEST * span_bytes(group, SPAN_LEN, stored)
        for group in model.groups
        if group.state is not None
    )


def _choices(asked: EngineConfig, of: _Measure) -> Iterator[EngineConfig]:
    """Yield the requested configuration, and without a format of weights the usual ones as well."""
    yield asked
    if asked.quantize is None and not of.is_quantised:
        for name in of.compute(asked).backend.compares:
            yield replace(asked, quantize=name)


@dataclass(frozen=True, slots=True)
class _Measure:
    """A checkpoint's model and the place that it is measured for."""

    checkpoint: Checkpoint
    model: Decoder
    place: Place

    @property
    def is_quantised(self) -> bool:
        """True if the files hold codes, which are not rounded again."""
        reader = self.checkpoint.reader
        return isinstance(reader, PackedReader) or bool(formats_of(reader))

    def compute(self, asked: EngineConfig) -> Compute:
        """Return what would compute the model there."""
        reader = self.checkpoint.reader
        return decide_compute(
            asked,
            checkpoint_dtype(self.checkpoint.config),
            self.place.machine,
            packed=isinstance(reader, PackedReader),
        )

    def room(self, asked: EngineConfig, compute: Compute, lengths: Sequence[int]) -> Room:
        """Return the room beside the weights in one format."""
        model, reader = self.model, self.checkpoint.reader
        stored = StoredWeights(checkpoint_dtype(self.checkpoint.config), False, formats_of(reader))
        taken = estimated_weight_bytes(asked, compute, model, stored)
        taken += sum(  # towers are computed in what the decoder is
            prod(each.shape) * STORED[compute.dtype].bits // 8 for each in weights(model.towers)
        )
        step = estimated_step_bytes(asked, compute, model)
        step += 0 if compute.device == "cpu" else GPU_BYTES
        left = self.place.num_bytes - taken - step
        return Room(
            quantize=asked.quantize,
            backend=compute.backend.name,
            weight_bytes=taken,
            step_bytes=step,
            kv_bytes=left,
            requests={each: self._requests(asked, compute, left, each) for each in lengths},
            longest=self._longest(asked, compute, left),
        )

    def _request_bytes(self, asked: EngineConfig, compute: Compute, length: int) -> int:
        span_len = asked.span_len or SPAN_LEN
        stored = stored_cache(asked, compute)
        demand = Demand(length, 1, decide_demand(asked, compute, self.model).step_tokens)
        return sum(
            spans_per_request(group, span_len, demand) * span_bytes(group, span_len, stored)
            for group in self.model.groups
        )

    def _requests(self, asked: EngineConfig, compute: Compute, left: int, length: int) -> int:
        return max(0, int(left * KV_SHARE)) // self._request_bytes(asked, compute, length)

    def _longest(self, asked: EngineConfig, compute: Compute, left: int) -> int:
        if not self._requests(asked, compute, left, 1):
            return 0
        return longest(
            self.model.groups,
            budget=int(left * KV_SHARE),
            span_len=asked.span_len or SPAN_LEN,
            stored=stored_cache(asked, compute),
            max_len=self.model.max_len,
            step_tokens=decide_demand(asked, compute, self.model).step_tokens,
        )
