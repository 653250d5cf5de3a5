"""Consistency of the smallest parts of a tree: weights, linear layers, norms."""

from __future__ import annotations

from collections.abc import Iterator

from spaninfer_engine.spec.weight_nodes import Linear, Norm, Ones, Weight

Misfits = Iterator[str]


def of_weight(weight: Weight | Ones, *shape: int) -> Misfits:
    """Yield a sentence if a weight has another shape than what reads it takes."""
    if weight.shape != shape:
        yield f"{weight.name} is {list(weight.shape)}, and what reads it takes {list(shape)}"


def of_linear(linear: Linear, rows: int, columns: int) -> Misfits:
    """Yield what does not fit of a linear layer from `columns` to `rows` channels."""
    yield from of_weight(
        linear.weight, *((columns, rows) if linear.transposed else (rows, columns))
    )
    for each in (linear.bias, linear.scale):
        if each is not None:
            yield from of_weight(each, rows)


def of_norm(what: str, norm: Norm | None, channels: int) -> Misfits:
    """Yield what does not fit of a norm of `channels`; `what` names it."""
    if norm is None:
        return
    yield from of_weight(norm.weight, channels)
    if norm.bias is not None:
        yield from of_weight(norm.bias, channels)
    if not norm.eps > 0:
        yield f"the eps of the {what} is {norm.eps}; it must lie above 0"
