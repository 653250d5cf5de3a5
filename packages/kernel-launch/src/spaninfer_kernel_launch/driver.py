"""The CUDA driver, through cuda.bindings: imported when a GPU is used, not before."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as once
from typing import Any

from spaninfer_kernel_launch.errors import WAY_TO_EXTRA, DriverError, GpuMissing, OutOfMemory

_OUT_OF_MEMORY = 2


@once
def driver() -> Any:
    """Return the module that binds the driver, initialised. Raises GpuMissing without one."""
    try:
        from cuda.bindings import driver as bound
    except ImportError as missing:
        raise GpuMissing(
            f"cannot use a GPU: cuda-bindings is not installed; {WAY_TO_EXTRA}"
        ) from missing
    try:
        (status,) = bound.cuInit(0)
    except RuntimeError as missing:  # the bindings found no libcuda
        raise GpuMissing("cannot use a GPU: no NVIDIA driver is installed") from missing
    if int(status) != 0:
        raise GpuMissing(f"cannot use a GPU: the NVIDIA driver says {status.name}")
    return bound


def call_driver(function: Callable[..., tuple[Any, ...]], *arguments: object) -> Any:
    """Call a function of the driver; return its result, a tuple where it has several.

    Raises OutOfMemory or DriverError with the driver's words where it refuses.
    """
    status, *results = function(*arguments)
    if status:
        raise refusal(function.__name__, status)
    return results[0] if len(results) == 1 else tuple(results)


def refusal(name: str, status: Any) -> DriverError:
    """Return the error that says, in the driver's words, why its function `name` refused."""
    _, words = driver().cuGetErrorString(status)
    text = words.decode() if words else "an unknown error"
    kind = OutOfMemory if int(status) == _OUT_OF_MEMORY else DriverError
    return kind(f"{name}: {text} ({status.name})")
