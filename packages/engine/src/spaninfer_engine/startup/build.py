"""From a path to an engine's parts: open, resolve, check, bind, decide, in that order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from spaninfer_engine.backends.start import HostStart, Start
from spaninfer_engine.config import EngineConfig, Resolved
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.kv_memory import Demand
from spaninfer_engine.load import Checkpoint, open_checkpoint
from spaninfer_engine.load.dummy import DummyReader
from spaninfer_engine.load.packed import PackedReader
from spaninfer_engine.load.packing import as_packed
from spaninfer_engine.ops.bound import Bound
from spaninfer_engine.ops.table import Ops, Pack
from spaninfer_engine.program.bind import bind_packed, packer
from spaninfer_engine.program.lower import lower
from spaninfer_engine.run.runner import Runner
from spaninfer_engine.run.sampler import Sampler
from spaninfer_engine.spec import Decoder, check, find, load
from spaninfer_engine.spec import resolve as resolve_spec
from spaninfer_engine.spec.nodes import CacheGroup
from spaninfer_engine.spec.tree import shortened, weights
from spaninfer_engine.startup.assets import open_texts
from spaninfer_engine.startup.components import Parts
from spaninfer_engine.startup.compute import (
    Compute,
    checkpoint_dtype,
    decide_compute,
    refuse_varying,
)
from spaninfer_engine.startup.hardware import this_machine
from spaninfer_engine.startup.limits import (
    SPAN_LEN,
    decide_budget,
    decide_demand,
    decide_graphs,
    resolve,
    served_name,
)
from spaninfer_engine.step.sequences import Sequences

MODELS = "spaninfer.models"
"""Entry points of packages that bring a model: the name is the model's, the value a function
without arguments that returns its folder."""

REFUSED_KEYS = ("quantization_config", "compression_config")


class Progress(Protocol):
    """Is told how far loading has come."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` units of a stage are finished; of one unit, nobody knows how much."""
        ...


def silent(stage: str, done: int, total: int) -> None:
    """Tell nobody."""


def build(asked: EngineConfig, progress: Progress = silent) -> Parts:
    """Return everything an engine runs on.

    Raises ConfigError for what was asked, CheckpointError for what is on disk.
    """
    path, name = locate(asked.model)
    with open_checkpoint(path, with_weights=asked.weights != "dummy") as checkpoint:
        refuse_quantised(checkpoint)
        packed = checkpoint.reader if isinstance(checkpoint.reader, PackedReader) else None
        if packed is not None:
            asked = as_packed(asked, packed.packing)
        decoder = resolve_decoder(asked, checkpoint)
        name = served_name(asked, name)
        texts = open_texts(asked, checkpoint, decoder, name)  # weights and kernels take longer
        stored_as = checkpoint_dtype(checkpoint.config)
        machine = this_machine(with_gpu=asked.backend not in ("cpu", "reference"))
        compute = decide_compute(asked, stored_as, machine, packed=packed is not None)
        kernels = stage_of(progress, "kernels")
        ops = make_ops(compute, decoder.groups, asked, stored_as, tell=kernels)
        ops.warm()
        pack = _unpacked(asked, checkpoint, decoder, ops) if packed is None else _mapped(packed)
        bound = bind_packed(lower(decoder), ops, pack, stage_of(progress, "weights"))
        demand = decide_demand(asked, compute, decoder)
        start = _start(asked, compute, bound, ops, decoder, demand, pack)
        needs = start.measure(progress)
        ops.end_packing()
        memory = decide_budget(asked, compute, ops.available_bytes(), ops.cache_share, needs)
        resolved = resolve(asked, name, decoder, compute, memory)
        sequences = Sequences(
            len(decoder.groups),
            max_len=resolved.max_len,
            span_len=resolved.span_len,
            num_rows=resolved.max_running,
        )
        device = start.device(sequences, resolved.num_spans, progress)
        return Parts(
            resolved=resolved,
            decoder=decoder,
            runner=Runner(device, sequences, _sampler(resolved, decoder)),
            tokenizer=texts.tokenizer,
            template=texts.template,
            sampling=texts.sampling,
            end_ids=texts.tokenizer.eos_ids & frozenset(range(decoder.vocab)),  # files name others
            listing=str(bound),
        )


def locate(model: str | Path) -> tuple[Path, str]:
    """Return the folder or file of a model, and its name.

    The bare name of a model that a package brings means that one; ./NAME is always a path.
    """
    brought = {point.name: point for point in entry_points(group=MODELS)}
    if isinstance(model, str) and model in brought:
        return Path(brought[model].load()()), model
    path = Path(model).expanduser()
    if path.exists():
        return path, path.stem if path.is_file() else path.resolve().name
    names = ", ".join(sorted(brought)) or "none"
    raise ConfigError(
        f"there is no file or folder {str(model)!r}, and no installed package brings a model of "
        f"that name (brought: {names}); models are not downloaded, give the path of one"
    )


def make_ops(
    compute: Compute,
    groups: tuple[CacheGroup, ...],
    asked: EngineConfig,
    stored_as: str,
    *,
    tell: Callable[[int, int], None] | None = None,
) -> Ops[Any]:
    """Return the operators of a backend for a model; only its own framework is imported.

    `tell` hears how many kernels are compiled, and of how many, where a step waits for that.
    """
    match compute.backend:
        case "cuda":
            from spaninfer_engine.backends.cuda.ops import CudaOps

            assert compute.dtype != "float32", compute
            return CudaOps(
                *(compute.dtype, compute.device, groups, asked.kv_dtype),
                batch_invariant=asked.batch_invariant,
            )
        case "torch":
            from spaninfer_engine.backends.torch.ops import TorchOps

            return TorchOps(compute.dtype, compute.device)
        case "reference":
            from spaninfer_engine.backends.reference.ops import ReferenceOps

            return ReferenceOps("float32")
        case "cpu":
            from spaninfer_kernels_cpu import Format

            from spaninfer_engine.backends.cpu.ops import CpuOps

            assert compute.dtype != "float16", compute
            format = (
                None if asked.quantize is None else Format(asked.quantize, asked.quantize_group)
            )
            kv_dtype = asked.kv_dtype or compute.dtype
            assert kv_dtype != "fp8", compute
            return CpuOps(
                compute.dtype,
                format=format,
                stored_as=stored_as,
                kv_dtype=kv_dtype,
                tell=tell,
            )


def _start(
    asked: EngineConfig,
    compute: Compute,
    bound: Bound[Any],
    ops: Any,
    decoder: Decoder,
    demand: Demand,
    pack: Pack,
) -> Start:
    """Return what starts the backend's device."""
    if compute.backend != "cuda":
        return HostStart(bound.run, ops, decoder)
    from spaninfer_engine.backends.cuda.start import CudaStart

    if asked.batch_invariant:
        refuse_varying(step.name for step in bound.text.steps)
    span_len, graphs = asked.span_len or SPAN_LEN, decide_graphs(asked, compute)
    few_layers = partial(bind_packed, lower(shortened(decoder)), ops, pack)
    return CudaStart(bound, few_layers, ops, decoder, demand, span_len=span_len, graphs=graphs)


def _sampler(resolved: Resolved, decoder: Decoder) -> Sampler:
    """Return what draws on the host: kernels on backend cpu, which are compiled for it."""
    if resolved.backend != "cpu":
        return Sampler()
    from spaninfer_engine.backends.cpu.sampling import CpuDraw

    return Sampler(CpuDraw(decoder.vocab))


def refuse_quantised(checkpoint: Checkpoint) -> None:
    """Raise ConfigError for weights in codes that others made."""
    for key in REFUSED_KEYS:
        if checkpoint.config.get(key):
            raise ConfigError(
                f"{checkpoint.path}: config.json has {key}; checkpoints that are stored "
                "quantised are not read yet, use one in float32, bfloat16 or float16"
            )


def resolve_decoder(asked: EngineConfig, checkpoint: Checkpoint) -> Decoder:
    """Return the tree of a checkpoint, which has all of its weights."""
    spec = load(asked.spec) if asked.spec is not None else find(checkpoint.config)
    reader = checkpoint.reader
    if asked.weights == "dummy":
        return resolve_spec(spec, checkpoint.config)
    decoder = resolve_spec(spec, checkpoint.config, reader.names)
    check(decoder, {name: reader.shape(name) for name in reader.names})
    return decoder


def _unpacked(asked: EngineConfig, checkpoint: Checkpoint, decoder: Decoder, ops: Ops[Any]) -> Pack:
    """Return what packs a model's weights while it is bound."""
    if asked.weights == "dummy":
        return packer(ops, DummyReader(weights(decoder), asked.seed))
    return packer(ops, checkpoint.reader)


def _mapped(packed: PackedReader) -> Pack:
    """Return what finds weights that were packed before."""
    from spaninfer_engine.startup.packed_weights import PackedWeights

    return PackedWeights(packed).pack


def stage_of(progress: Progress, stage: str) -> Callable[[int, int], None]:
    """Return what tells `progress` how far this stage has come."""
    return lambda done, total: progress(stage, done, total)
