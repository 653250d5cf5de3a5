"""The comparison of a model on disk with one that runs: may it give that one other weights?"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from spaninfer_engine.config import EngineConfig
from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.load.packed.file import PackedReader
from spaninfer_engine.load.packed.packing import as_packed
from spaninfer_engine.spec import Model
from spaninfer_engine.spec.tree import weights
from spaninfer_engine.startup.model import locate, resolve_model


def check_same_model(asked: EngineConfig, running: Model) -> None:
    """Raise unless the files that are asked for hold the running model, with any weights.

    CheckpointError names the tensor or the value that differs; all that `build` raises for
    configurations, names and shapes is raised as well. Values of weights are not read.
    """
    path, _ = locate(asked.model)
    with open_checkpoint(path) as checkpoint:
        if isinstance(checkpoint.reader, PackedReader):
            asked = as_packed(asked, checkpoint.reader.packing)
        found = resolve_model(asked, checkpoint)
    _refuse_other(path, found, running)


def _refuse_other(path: Path, found: Model, running: Model) -> None:
    theirs, ours = ({each.name: each.shape for each in weights(one)} for one in (found, running))
    for name in [*ours, *theirs]:
        if theirs.get(name) != ours.get(name):
            raise CheckpointError(
                f"{path}: {name} {_shown(theirs.get(name))}, and in the model that runs "
                f"it {_shown(ours.get(name))}; weights can be replaced only by those of "
                "the same model"
            )
    other = _difference(found, running, "")
    if other is not None:
        raise CheckpointError(
            f"{path}: {other} in the model that runs; weights can be replaced only by "
            "those of the same model"
        )


def _shown(shape: tuple[int, ...] | None) -> str:
    return "is missing" if shape is None else f"has the shape {list(shape)}"


def _difference(found: object, running: object, place: str) -> str | None:
    """Return a sentence's beginning about the first value that differs; None where none does."""
    if found == running:
        return None
    if type(found) is type(running):
        if dataclasses.is_dataclass(found):
            for field in dataclasses.fields(found):
                ours, name = getattr(running, field.name), f"{place}.{field.name}".lstrip(".")
                if other := _difference(getattr(found, field.name), ours, name):
                    return other
        if isinstance(found, tuple) and isinstance(running, tuple) and len(found) == len(running):
            for at, (theirs, ours) in enumerate(zip(found, running, strict=True)):
                if other := _difference(theirs, ours, f"{place}[{at}]"):
                    return other
    return f"{place} is {found!r}, and {running!r}"
