"""A GPU: the properties by which kernels are chosen, and the context that they are loaded in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache as once

from spaninfer_kernel_launch.driver import call_driver, driver
from spaninfer_kernel_launch.errors import DeviceError, GpuMissing, GpuTooOld
from spaninfer_kernel_launch.variant import ARCHITECTURES
from spaninfer_kernel_launch.view import View

_ARCHITECTURE_OF = {
    (7, 5): "sm_75",
    **{(8, minor): "sm_80" for minor in (0, 6, 7, 9)},
    (9, 0): "sm_90a",
    (10, 0): "sm_100a",
    **{(12, minor): "sm_120" for minor in (0, 1)},
}
"""Machine code runs on later minor versions, except where the name ends in "a"."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: number, name, architecture, multiprocessors; `context` is the driver's primary one.

    `shared_bytes` is the most that a block may ask for, `l2_bytes` the size of the L2 cache.
    """

    index: int
    name: str
    arch: str
    sm_count: int
    shared_bytes: int
    l2_bytes: int
    context: int

    @property
    def is_current(self) -> bool:
        """True if this GPU's context is the thread's current one."""
        _, context = driver().cuCtxGetCurrent()
        return int(context) == self.context

    def make_current(self) -> None:
        """Make this GPU's context the thread's current one; frameworks warn of a thread that has
        none, or that gets one by their first call.
        """
        call_driver(driver().cuCtxSetCurrent, self.context)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this GPU's context the thread's current one; restore the earlier one afterwards."""
        bound = driver()
        call_driver(bound.cuCtxPushCurrent, self.context)
        try:
            yield
        finally:
            call_driver(bound.cuCtxPopCurrent)


def architecture_of(capability: tuple[int, int]) -> str:
    """Return the architecture whose kernels a GPU of this compute capability runs.

    >>> architecture_of((8, 9))
    'sm_80'
    """
    if capability in _ARCHITECTURE_OF:
        return _ARCHITECTURE_OF[capability]
    major, minor = capability
    raise GpuTooOld(
        f"no kernels for compute capability {major}.{minor}; "
        f"there are {', '.join(ARCHITECTURES)}, the oldest being Turing (7.5)"
    )


@once
def get_gpu(index: int = 0) -> Gpu:
    """Return GPU number `index`. Raises GpuMissing without driver or GPU, GpuTooOld for its age."""
    bound = driver()
    count = call_driver(bound.cuDeviceGetCount)
    if not 0 <= index < count:
        raise GpuMissing(f"there is no GPU {index}; the driver sees {count}")
    device = call_driver(bound.cuDeviceGet, index)
    of = bound.CUdevice_attribute

    def attribute(name: str) -> int:
        number: int = call_driver(
            bound.cuDeviceGetAttribute, getattr(of, f"CU_DEVICE_ATTRIBUTE_{name}"), device
        )
        return number

    arch = architecture_of(
        (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR"))
    )
    return Gpu(
        index=index,
        name=call_driver(bound.cuDeviceGetName, 128, device).partition(b"\0")[0].decode(),
        arch=arch,
        sm_count=attribute("MULTIPROCESSOR_COUNT"),
        shared_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        context=int(call_driver(bound.cuDevicePrimaryCtxRetain, device)),
    )


def gpu_of(**arrays: View) -> Gpu:
    """Return the GPU that all of `arrays` lie on; a DeviceError names the one that does not."""
    places = {name: array.device for name, array in arrays.items()}
    first, place = next(iter(places.items()))
    for name, other in places.items():
        if other.kind != "cuda":
            raise DeviceError(f"{name} lies in {other} memory; kernels need arrays on a GPU")
        if other != place:
            raise DeviceError(f"{name} lies on {other}, but {first} lies on {place}")
    return get_gpu(place.index)
