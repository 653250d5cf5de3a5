"""The construction of an engine's components: open, resolve, check, bind, decide, in that order."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from spaninfer_engine.backends.backend import BackendOptions
from spaninfer_engine.backends.host.tower import HostTower
from spaninfer_engine.backends.host_memory import total_bytes
from spaninfer_engine.backends.rank import ALONE, Rank
from spaninfer_engine.backends.registry import BACKENDS
from spaninfer_engine.backends.setup import DeviceSetup
from spaninfer_engine.backends.start import BoundModel, Start
from spaninfer_engine.config import EngineConfig, Resolved
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.lazy import without_collector
from spaninfer_engine.load import Checkpoint, open_checkpoint
from spaninfer_engine.load.dummy import DummyReader
from spaninfer_engine.load.packed.file import PackedReader
from spaninfer_engine.load.packed.packing import as_packed
from spaninfer_engine.load.tensors.dtype import checkpoint_dtype
from spaninfer_engine.ops.bound import Programs
from spaninfer_engine.ops.operation import Use
from spaninfer_engine.ops.table import Ops, Pack
from spaninfer_engine.program.bind import bind_packed
from spaninfer_engine.program.lower import lower
from spaninfer_engine.program.packer import Packer, packed_bytes
from spaninfer_engine.program.program import Program
from spaninfer_engine.run.embedding import EmbeddingRunner
from spaninfer_engine.run.pooling_head import PoolingHead
from spaninfer_engine.run.runner import Runner
from spaninfer_engine.run.sampler import Sampler
from spaninfer_engine.spec import Decoder, Encoder, Model
from spaninfer_engine.spec.tree import shortened, weights
from spaninfer_engine.startup.assets import Texts, open_texts
from spaninfer_engine.startup.components import Parts
from spaninfer_engine.startup.compute import (
    Compute,
    decide_compute,
)
from spaninfer_engine.startup.encoders import resolve_encoder
from spaninfer_engine.startup.hardware import this_machine
from spaninfer_engine.startup.kv_offload import open_span_files
from spaninfer_engine.startup.limits import (
    SPAN_LEN,
    Memory,
    decide_budget,
    decide_demand,
    refuse_beyond_machine,
    resolve,
    served_name,
)
from spaninfer_engine.startup.media import TowersByKind, encoder_bytes, max_encoded, media_setup
from spaninfer_engine.startup.model import locate, resolve_decoder, resolve_model
from spaninfer_engine.startup.option_values import check_values
from spaninfer_engine.startup.progress import Progress, silent, stage_of
from spaninfer_engine.startup.shortage import refuse_narrow_address_space, shortage_named
from spaninfer_engine.startup.towers import open_towers
from spaninfer_engine.startup.weight_formats import describe_formats, formats_of
from spaninfer_engine.startup.weight_memory import StoredWeights, refuse_oversized
from spaninfer_engine.step.sequences import Sequences

_log = logging.getLogger(__name__)


@shortage_named()
def build(asked: EngineConfig, progress: Progress = silent, rank: Rank = ALONE) -> Parts:
    """Return everything that an engine runs on; of several ranks, what this one runs on.

    Raises ConfigError for what was asked, CheckpointError for what is on disk.
    """
    refuse_narrow_address_space()
    if rank.count > 1:
        raise ConfigError(
            f"rank {rank.index} of {rank.count} was requested, but a model runs in one "
            "process; omit rank"
        )
    check_values(asked)
    path, name = locate(asked.model)
    with open_checkpoint(path, with_weights=asked.weights != "dummy") as checkpoint:
        source = _open(asked, checkpoint, name)
        loaded = _load(source, _choose_backend(source), rank, progress)
        resolved = _fit(source, loaded, progress)
        return replace(_assemble(source, loaded, resolved, progress), asked=asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """An open checkpoint: its model and texts, and what was requested of them."""

    asked: EngineConfig
    checkpoint: Checkpoint
    packed: PackedReader | None  # of weights that lie in files as they are used
    model: Model
    program: Program
    texts: Texts
    name: str  # that answers carry


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """A model bound to a backend, with its weights in memory."""

    compute: Compute
    ops: Ops[Any]
    bound: Programs[Any]
    weight_bytes: int
    start: Start
    towers: tuple[HostTower[Any], ...]


def _open(asked: EngineConfig, checkpoint: Checkpoint, name: str) -> _Source:
    """Return a checkpoint's model, and its texts: weights and kernels take longer."""
    packed = checkpoint.reader if isinstance(checkpoint.reader, PackedReader) else None
    if packed is not None:
        asked = as_packed(asked, packed.packing)
    model = resolve_model(asked, checkpoint)
    program = lower(model)
    name = served_name(asked, name)
    return _Source(
        asked=asked,
        checkpoint=checkpoint,
        packed=packed,
        model=model,
        program=program,
        texts=open_texts(asked, checkpoint, model, name),
        name=name,
    )


def _choose_backend(source: _Source) -> Compute:
    """Return what computes the model on this machine."""
    asked = source.asked
    may_use_gpu = asked.backend is None or BACKENDS[asked.backend].on_gpu
    compute = decide_compute(
        asked,
        checkpoint_dtype(source.checkpoint.config),
        this_machine(with_gpu=may_use_gpu),
        packed=source.packed is not None,
        result=source.program.returns,
    )
    if compute.device == "cpu":
        refuse_beyond_machine(asked.memory_bytes, total_bytes())
    return compute


def _load(source: _Source, compute: Compute, rank: Rank, progress: Progress) -> _Loaded:
    """Open the backend and read the weights that the model's programs use."""
    asked, model, packed = source.asked, source.model, source.packed
    options = _options(asked, compute, source.checkpoint, model, rank)
    backend, of_kernels = compute.backend, stage_of(progress, "kernels")
    opened = backend.open_encoder if isinstance(model, Encoder) else backend.open
    with without_collector():
        ops = opened(options, of_kernels)
    refuse_oversized(
        asked,
        compute,
        model,
        ops.available_bytes(),
        stored=StoredWeights(options.stored_as, packed is not None, options.formats),
    )
    ops.warm()
    weights = _packer(asked, source.checkpoint, model, ops) if packed is None else mapped(packed)
    pack = WeightCount(weights)
    bound = bind_packed(source.program, ops, pack, stage_of(progress, "weights"))
    compute = _with_formats(compute, weights)
    few_layers = partial(bind_packed, lower(shortened(model)), ops, pack)
    start = compute.backend.start(
        BoundModel(bound, ops, model, few_layers),
        decide_demand(asked, compute, model),
        asked=asked,
        span_len=asked.span_len or SPAN_LEN,
    )
    return _Loaded(
        compute=compute,
        ops=ops,
        bound=bound,
        weight_bytes=pack.num_bytes,
        start=start,
        towers=open_towers(asked, source.checkpoint.path, model, compute, options),
    )


def _fit(source: _Source, loaded: _Loaded, progress: Progress) -> Resolved:
    """Measure what steps take, and divide the memory that is left."""
    asked, model, compute, ops = source.asked, source.model, loaded.compute, loaded.ops
    needs = loaded.start.measure(progress)
    ops.end_packing()
    needs = replace(needs, towers=compute.backend.start_towers(loaded.towers, progress))
    encodings = encoder_bytes(asked, model, ops.available_bytes())
    needs = replace(needs, encodings=encodings)
    memory = decide_budget(asked, compute, ops.available_bytes(), ops.cache_share, needs)
    return replace(
        _resolved(asked, source.name, model, compute, memory),
        max_encoded=max_encoded(asked, model, compute, encodings),
    )


def _assemble(source: _Source, loaded: _Loaded, resolved: Resolved, progress: Progress) -> Parts:
    """Make the device with its KV cache, and the components around it."""
    asked, model, checkpoint, texts = source.asked, source.model, source.checkpoint, source.texts
    path, compute = checkpoint.path, loaded.compute
    sequences = Sequences(
        len(model.groups),
        max_len=resolved.max_len,
        span_len=resolved.span_len,
        num_rows=resolved.max_running,
    )
    head = _head(asked, checkpoint, model)
    span_files = open_span_files(asked, checkpoint, model, resolved)
    setup = DeviceSetup(
        sequences,
        resolved.num_spans,
        () if resolved.kv_offload is None else resolved.kv_offload.num_slots,
        TowersByKind(loaded.towers) if loaded.towers else None,
    )
    return Parts(
        resolved=resolved,
        model=model,
        runner=_runner(model, loaded.start.device(setup, progress), sequences, compute),
        tokenizer=texts.tokenizer,
        template=texts.template,
        sampling=texts.sampling,
        end_ids=texts.tokenizer.eos_ids & frozenset(range(model.vocab)),  # files name others
        weight_bytes=loaded.weight_bytes,
        listing=str(loaded.bound),
        head=head,
        media=media_setup(path, model),
        towers=loaded.towers,
        span_files=span_files,
    )


def _resolved(
    asked: EngineConfig, name: str, model: Model, compute: Compute, memory: Memory
) -> Resolved:
    match model:
        case Decoder():
            return resolve(asked, name, model, compute, memory)
        case Encoder():
            return resolve_encoder(asked, name, model, compute)


def _runner(
    model: Model, device: Any, sequences: Sequences, compute: Compute
) -> Runner | EmbeddingRunner:
    match model:
        case Decoder(vocab=vocab):
            faster = compute.backend.host_sampling(vocab)
            sampler = Sampler(vocab, faster.sample, faster.logprobs)
            return Runner(device, sequences, sampler, vocab=vocab)
        case Encoder(pool=pool):
            return EmbeddingRunner(device, sequences, pool)


def _head(asked: EngineConfig, checkpoint: Checkpoint, model: Model) -> PoolingHead | None:
    """Return what follows the pooling of an encoder's texts."""
    if not isinstance(model, Encoder):
        return None
    if asked.weights == "dummy":
        return PoolingHead(model, DummyReader(weights(model.head), asked.seed))
    return PoolingHead(model, checkpoint.reader)


def _options(
    asked: EngineConfig,
    compute: Compute,
    checkpoint: Checkpoint,
    model: Model,
    rank: Rank = ALONE,
) -> BackendOptions:
    """Return the options that the chosen backend is opened with for a model."""
    return BackendOptions(
        device=compute.device,
        dtype=compute.dtype,
        kv_dtype=asked.kv_dtype,
        stored_as=checkpoint_dtype(checkpoint.config),
        groups=model.groups,
        asked=asked,
        formats=formats_of(checkpoint.reader),
        rank=rank,
    )


def open_on_cpu(asked: EngineConfig, checkpoint: Checkpoint) -> tuple[Decoder, Ops[Any]]:
    """Return the decoder of a checkpoint, and the operators that compute it on a CPU.

    NotBuilt for other models.
    """
    decoder, stored_as = resolve_decoder(asked, checkpoint), checkpoint_dtype(checkpoint.config)
    compute = decide_compute(asked, stored_as, this_machine(with_gpu=False))
    return decoder, compute.backend.open(_options(asked, compute, checkpoint, decoder))


def _with_formats(compute: Compute, source: Pack) -> Compute:
    """Return the decisions with what became of quantised weights, which is logged as well."""
    made = []
    if isinstance(source, Packer):
        made = describe_formats(source.quantised, compute.backend.code_activations)
    for decision in made:
        _log.info("%s: %s (%s)", decision.what, decision.value, decision.why)
    return replace(compute, decisions=(*compute.decisions, *made))


def _packer(
    asked: EngineConfig, checkpoint: Checkpoint, model: Model, ops: Ops[Any]
) -> Packer[Any]:
    """Return what packs a model's weights while it is bound."""
    kept: frozenset[str] = frozenset()
    if asked.keep_head and isinstance(model, Decoder):
        kept = frozenset({model.head.linear.weight.name})
    if asked.weights == "dummy":
        return Packer(ops, DummyReader(weights(model), asked.seed), kept)
    return Packer(ops, checkpoint.reader, kept)


class WeightCount:
    """A Pack that counts the bytes of the weights that it gives, each once."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._bytes: dict[
            int, int
        ] = {}  # by identity, for a table may be the head: `pack` keeps all

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights so far, as the backend holds them."""
        return sum(self._bytes.values())

    def __call__(self, uses: Sequence[Use], layout: str) -> Any:
        """Return the packed weight of these uses."""
        packed: Any = self._pack(uses, layout)
        self._bytes[id(packed)] = packed_bytes(packed)
        return packed


def mapped(packed: PackedReader) -> Pack:
    """Return what finds weights that were packed before."""
    from spaninfer_engine.startup.packed_weights import PackedWeights

    return PackedWeights(packed).pack
