"""The tree against a checkpoint's index: missing, surplus and wrongly shaped tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase

from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.spec.nodes import Model
from spaninfer_engine.spec.tree import weights

SHOWN = 10  # problems that the error spells out


Idle = Callable[[str], bool]
"""Tells of a tensor whether a model that does not have it computes the same without it."""


def check(
    model: Model, shapes: Mapping[str, tuple[int, ...]], is_idle: Idle = lambda _: False
) -> None:
    """Refuse a checkpoint whose names and shapes are not those of the tree.

    `shapes` holds every tensor of the checkpoint. All problems are reported at once.
    """
    problems = list(differences(model, shapes, is_idle))
    if not problems:
        return
    shown = "".join(f"\n  {problem}" for problem in problems[:SHOWN])
    rest = f"\n  and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    raise CheckpointError(
        f"the checkpoint is not a {model.architecture} of this config, {count}:{shown}{rest}"
    )


def differences(
    model: Model, shapes: Mapping[str, tuple[int, ...]], is_idle: Idle = lambda _: False
) -> Iterator[str]:
    """Yield one sentence per missing, wrongly shaped or surplus tensor."""
    wanted = {weight.name: weight.shape for weight in weights(model)}
    for name, shape in wanted.items():
        if name not in shapes:
            yield f"{name} {list(shape)} is missing"
        elif tuple(shapes[name]) != shape:
            yield f"{name} is {list(shapes[name])}, expected {list(shape)}"
    for name in shapes:
        if name in wanted or any(fnmatchcase(name, each) for each in model.surplus):
            continue
        if not is_idle(name):
            yield f"{name} {list(shapes[name])} is not part of the model"
