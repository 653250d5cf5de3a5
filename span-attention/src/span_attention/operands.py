"""What runs of planned attention are given: arrays, or addresses where those are known to fit."""

from __future__ import annotations

from typing import Any

from spaninfer_kernel_launch import DeviceError, Gpu, Key, ShapeError, View, gpu_of, look_at


def look_or_trust(array: object) -> tuple[int, Key]:
    """Return address and key; the key is empty for an address, of which nothing can be checked."""
    return (array, ()) if isinstance(array, int) else look_at(array)


def no_result(stream: int) -> tuple[Any, ...]:  # noqa: ARG001
    """Raise ShapeError: of a query's address, it is not known what a result would be made of."""
    raise ShapeError("query is an address; give out=, too")


def check_device(gpu: Gpu, **views: View) -> None:
    """Raise DeviceError unless all arrays lie on the GPU that the step was planned for."""
    if views and (found := gpu_of(**views)).index != gpu.index:
        first = next(iter(views))
        raise DeviceError(f"{first} lies on cuda:{found.index}, but the plan on cuda:{gpu.index}")
