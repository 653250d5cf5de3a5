"""Queries on a tree of nodes: its weights, and a minimal set of layers that covers all kinds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from math import prod

from spaninfer_engine.spec.nodes import Head, Model
from spaninfer_engine.spec.weight_nodes import Weight


def weights(node: object) -> Iterator[Weight]:
    """Yield every weight below `node`, in the order of the fields; a tied head yields none."""
    match node:
        case Weight():
            yield node
        case Head(tied=True, linear=linear, project=project):
            yield from weights(project)
            yield from weights(linear.bias)
        case tuple():
            for item in node:
                yield from weights(item)
        case _ if dataclasses.is_dataclass(node):
            for field in dataclasses.fields(node):
                yield from weights(getattr(node, field.name))


def parameter_count(node: object) -> int:
    """Return how many numbers the weights below `node` hold."""
    return sum(prod(weight.shape) for weight in {*weights(node)})  # layers may share one


def shortened(model: Model) -> Model:
    """Return the model with its first layers only: one of every kind, and then one of the last's.

    The last one computes fewer rows behind its attention than others do.
    """
    kinds = [_kind(layer) for layer in model.layers]
    first_of_last = max((kinds.index(kind) for kind in kinds), default=-1)
    enough = (n for n in range(first_of_last + 2, len(kinds)) if kinds[n - 1] == kinds[-1])
    return dataclasses.replace(model, layers=model.layers[: next(enough, len(kinds))])


def _kind(node: object) -> object:
    """Return what `node` is but for the names of its weights."""
    match node:
        case Weight(shape=shape):
            return shape
        case tuple():
            return tuple(map(_kind, node))
        case _ if dataclasses.is_dataclass(node):
            fields = dataclasses.fields(node)
            return type(node), *(_kind(getattr(node, field.name)) for field in fields)
        case _:
            return node
