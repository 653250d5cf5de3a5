"""The towers of a model on its backend: opened with it, read when the backend wants them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from spaninfer_engine.backends.backend import BackendOptions
from spaninfer_engine.backends.host.tower import HostTower
from spaninfer_engine.cache.memory_plan import gib
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.load.dummy import DummyReader
from spaninfer_engine.load.packed.file import PackedReader
from spaninfer_engine.ops.bound import Programs
from spaninfer_engine.ops.table import Ops, Pack
from spaninfer_engine.program.bind import bind_all
from spaninfer_engine.program.lower_tower import lower_tower
from spaninfer_engine.program.packer import Packer
from spaninfer_engine.spec.nodes import Decoder, Model
from spaninfer_engine.spec.tower_nodes import Tower
from spaninfer_engine.spec.tree import parameter_count, weights
from spaninfer_engine.startup.compute import Compute
from spaninfer_engine.startup.shortage import shortage_named
from spaninfer_engine.startup.weight_memory import weight_bits


def open_towers(
    asked: EngineConfig, path: Path, model: Model, compute: Compute, options: BackendOptions
) -> tuple[HostTower[Any], ...]:
    """Return the towers of a model whose checkpoint lies at `path`; nothing is read yet.

    They have operators of their own: what a step of the decoder keeps at hand is not theirs.
    """
    if not isinstance(model, Decoder):
        return ()
    bits = weight_bits(asked, compute, options.stored_as)
    return tuple(
        HostTower(
            partial(_bind, asked, path, tower, ops, bits),
            ops,
            tower,
            max_rows=compute.backend.tower_rows,
        )
        for tower in model.towers
        for ops in (compute.backend.open_towers(options),)
    )


def refuse_oversized(tower: Tower, bits: float, available: int) -> None:
    """Raise ConfigError for a tower that `available` bytes do not hold, before it takes any."""
    count = parameter_count(tower)
    if (taken := int(count * bits) // 8) > available:
        kinds = " and ".join(tower.kinds)
        raise ConfigError(
            f"the {count:,} parameters of the model's tower for {kinds} take {gib(taken)}, and "
            f"{gib(available)} of memory are free; lower --memory, or send text alone"
        )


@shortage_named()
def _bind(
    asked: EngineConfig, path: Path, tower: Tower, ops: Ops[Any], bits: float
) -> Programs[Any]:
    """Return what computes a tower; reads and packs its weights, from files opened once more."""
    refuse_oversized(tower, bits, ops.available_bytes())
    with open_checkpoint(path, with_weights=asked.weights != "dummy") as checkpoint:
        reader = checkpoint.reader
        pack: Pack
        if asked.weights == "dummy":
            pack = Packer(ops, DummyReader(weights(tower), asked.seed))
        elif isinstance(reader, PackedReader):
            from spaninfer_engine.startup.packed_weights import PackedWeights

            pack = PackedWeights(reader).pack
        else:
            pack = Packer(ops, reader)
        bound = bind_all(lower_tower(tower), ops, pack)
        ops.end_packing()
    return bound
