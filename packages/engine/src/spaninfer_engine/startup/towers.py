"""The towers of a model on its backend, whose weights are read when the first media come."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from spaninfer_engine.backends.backend import Settings
from spaninfer_engine.backends.host.tower import HostTower
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.load.dummy import DummyReader
from spaninfer_engine.load.packed import PackedReader
from spaninfer_engine.ops.bound import Programs
from spaninfer_engine.ops.table import Ops, Pack
from spaninfer_engine.program.bind import bind_all
from spaninfer_engine.program.lower_tower import lower_tower
from spaninfer_engine.program.packer import Packer
from spaninfer_engine.spec.nodes import Model
from spaninfer_engine.spec.tower_nodes import Tower
from spaninfer_engine.spec.tree import weights
from spaninfer_engine.startup.compute import Compute


def open_towers(
    asked: EngineConfig, path: Path, model: Model, compute: Compute, settings: Settings
) -> tuple[HostTower[Any], ...]:
    """Return the towers of a model whose checkpoint lies at `path`; nothing is read yet.

    They have operators of their own: what a step of the decoder keeps at hand is not theirs.
    """
    towers = getattr(model, "towers", ())
    return tuple(
        _open(asked, path, tower, compute.backend.open_towers(settings)) for tower in towers
    )


def _open(asked: EngineConfig, path: Path, tower: Tower, ops: Ops[Any]) -> HostTower[Any]:
    return HostTower(partial(_bind, asked, path, tower, ops), ops, tower)


def _bind(asked: EngineConfig, path: Path, tower: Tower, ops: Ops[Any]) -> Programs[Any]:
    """Return what computes a tower; reads and packs its weights, from files opened once more."""
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
