"""What this machine has; the only file of the engine that asks."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts that decisions are made from."""

    has_torch: bool  # is it installed? importing it takes seconds
    has_cuda: bool  # is there a driver, and does torch see a device?


def this_machine() -> Machine:
    """Ask. Torch is imported only where an NVIDIA driver is installed beside it."""
    has_torch = importlib.util.find_spec("torch") is not None
    return Machine(has_torch, has_torch and _has_driver() and _torch_sees_cuda())


def _has_driver() -> bool:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _torch_sees_cuda() -> bool:
    from spaninfer_engine.ops.torch import cuda_is_available

    return cuda_is_available()
