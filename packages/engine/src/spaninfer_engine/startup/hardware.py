"""Detection of this machine's hardware; the only file of the engine that does it."""

from __future__ import annotations

import ctypes
import importlib.util
import sys

from spaninfer_engine.backends.hardware import Machine
from spaninfer_engine.backends.host_memory import available_bytes

_KERNELS = ("spaninfer_kernels_cuda", "span_attention", "cuda.bindings", "cuda.pathfinder")


def this_machine(*, with_gpu: bool = True) -> Machine:
    """Ask. Torch is imported only where an NVIDIA driver is installed beside it.

    Not `with_gpu`, the machine is taken for one without a GPU and torch is left alone: importing it
    takes longer (2.8 s on one server) than all else that backend cpu does at a start.
    """
    has_torch = _is_installed("torch")
    has_cuda = with_gpu and has_torch and has_driver() and _torch_sees_cuda()
    return Machine(
        has_torch,
        has_cuda,
        has_kernels=has_torch and all(map(_is_installed, _KERNELS)),
        capability=_capability() if has_cuda else (0, 0),
    )


def _is_installed(module: str) -> bool:
    """Ask without importing it; a parent that is missing makes find_spec raise."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def has_driver() -> bool:
    """Return whether an NVIDIA driver is installed."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def free_bytes(machine: Machine) -> int:
    """Return what is free of the memory that models of this machine are put into."""
    if not machine.has_cuda:
        return available_bytes()
    from spaninfer_engine.backends.torch.devices import free_device_bytes

    return free_device_bytes()


def _torch_sees_cuda() -> bool:
    from spaninfer_engine.backends.torch.devices import cuda_is_available

    return cuda_is_available()


def _capability() -> tuple[int, int]:
    from spaninfer_engine.backends.torch.devices import cuda_capability

    return cuda_capability()
