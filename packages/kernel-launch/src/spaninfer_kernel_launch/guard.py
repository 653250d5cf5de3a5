"""Recognition of torch tensors by one check in C++ of them all: that of torch.compile's guards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache as once
from typing import Any, TypeAlias

from spaninfer_kernel_launch.framework import framework_of, torch

Guard: TypeAlias = Callable[..., bool]


def guard_of(arrays: Sequence[Any]) -> Guard | None:
    """Return a function that tells whether as many tensors are like these.

    It is True for tensors of the same classes, shapes, strides, element types and devices alone,
    not for all of them: not for those of another autograd mode. None where there is no such
    function: for other frameworks' arrays, classes made from torch's, and one tensor given twice.
    """
    if any(framework_of(type(each)) != "torch" for each in arrays):
        return None
    if any(type(each) not in _classes() for each in arrays):
        return None
    guard = _guard(arrays)
    return guard if guard(*arrays) else None


@once
def _classes() -> tuple[type, ...]:
    """Return the classes whose tensors are recognised; none with a torch that has no such check.

    It is no part of torch's public interface, so it has to show first what it tells apart.
    """
    tensor = torch().zeros(2, 3)
    try:
        guard = _guard([tensor])
    except (AttributeError, TypeError):
        return ()
    unlike = (tensor[:1], tensor.T.contiguous().T, tensor.half(), tensor.to("meta"))
    tells = guard(torch().ones(2, 3)) and not any(map(guard, unlike))
    return (torch().Tensor, torch().nn.Parameter) if tells else ()


def _guard(tensors: Sequence[Any]) -> Guard:
    guards = torch()._C._dynamo.guards
    as_they_are = {"dynamic_dims_sizes": None, "dynamic_dims_strides": None}
    check: Guard = guards.TensorGuards(*tensors, **as_they_are).check
    return check
