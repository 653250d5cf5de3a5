"""The backends by name; importing it imports no framework."""

from __future__ import annotations

import re
from collections.abc import Mapping

from spaninfer_engine.backends.backend import Backend
from spaninfer_engine.backends.cpu.backend import CpuBackend
from spaninfer_engine.backends.cuda.backend import CudaBackend
from spaninfer_engine.backends.hardware import Machine
from spaninfer_engine.backends.reference.backend import ReferenceBackend
from spaninfer_engine.backends.torch.backend import TorchBackend
from spaninfer_engine.config import BackendName, EngineConfig
from spaninfer_engine.errors import ConfigError, shown
from spaninfer_engine.nearest import did_you_mean
from spaninfer_engine.ops.bound import Result

CUDA, CPU, TORCH, REFERENCE = CudaBackend(), CpuBackend(), TorchBackend(), ReferenceBackend()

BACKENDS: Mapping[BackendName, Backend] = {
    backend.name: backend for backend in (CUDA, CPU, TORCH, REFERENCE)
}


def device_named(device: str | None) -> str | None:
    """Return a device as torch calls it: gpu is what others call cuda; ConfigError for no name.

    >>> device_named("GPU:1")
    'cuda:1'
    """
    if device is None:
        return None
    name = device.lower() if isinstance(device, str) else ""
    found = re.fullmatch(r"([a-z]+)(:[0-9]+)?", name)
    if found is None:
        near = did_you_mean(name, ("cpu", "cuda", "gpu"))
        raise ConfigError(
            f"device is {shown(device)}; allowed are cpu, cuda (or gpu), cuda:1 for the second "
            f"GPU, and torch's names of other devices{near}"
        )
    kind, number = found.groups(default="")
    return {"gpu": "cuda"}.get(kind, kind) + number


def choose_backend(
    asked: EngineConfig, stored_as: str, machine: Machine, result: Result
) -> tuple[Backend, str]:
    """Return the requested backend, or the best for this machine, and why.

    `result` is the kind of array that the model's program returns.

    Raises ConfigError where what was asked does not go together.
    """
    on_gpu = asked.device is not None and asked.device != "cpu"
    if asked.backend is not None:
        backend = BACKENDS[asked.backend]
        if backend.needs_torch and not machine.has_torch:
            raise ConfigError(
                f"backend {backend.name} needs torch, which is not installed: "
                f"nox -s install -- {backend.name}, in the root of the checkout"
            )
        if on_gpu and not backend.on_gpu:
            raise ConfigError(
                f"backend {backend.name} computes on the cpu; device {asked.device} needs "
                "--backend cuda or torch"
            )
        return backend, "requested"
    if on_gpu or (asked.device is None and machine.has_cuda):
        if not machine.has_torch:
            raise ConfigError(
                f"device {asked.device} needs torch: pip install torch, "
                "or omit --device to auto-select"
            )
        if asked.quantize is not None and asked.quantize not in CUDA.quantizes_for(result):
            return TORCH, f"backend cuda has no kernels for encoders in {asked.quantize}"
        why_not = CUDA.why_not(asked, asked.dtype or stored_as, machine)
        if why_not is not None:
            return TORCH, why_not
        return CUDA, "a CUDA device is available, with kernels for it"
    if asked.dtype == "float16":
        if not machine.has_torch:
            raise ConfigError(f"dtype {asked.dtype} needs torch: pip install torch, or use float32")
        return TORCH, f"computes in {asked.dtype}"
    return CPU, "numpy and Numba, no GPU in use"


def choose_device(asked: EngineConfig, backend: Backend, machine: Machine) -> tuple[str, str]:
    """Return the device to compute on, and why; ConfigError where there is none."""
    if asked.device == "cpu" and not backend.on_cpu:
        raise ConfigError(
            f"backend {backend.name} computes on a GPU, but device is cpu; choose --backend "
            "cpu, or omit --device"
        )
    if not machine.has_cuda:
        needs_gpu = not backend.on_cpu
        if needs_gpu or (asked.device or "").startswith("cuda"):
            wanted = f"backend {backend.name}" if needs_gpu else f"device {asked.device}"
            raise ConfigError(
                f"{wanted} was requested, but no CUDA device can be used: there is no "
                "NVIDIA driver, or this torch was built without CUDA; omit the option, "
                "or install both"
            )
    if asked.device is not None:
        return asked.device, "requested"
    if backend.on_gpu and machine.has_cuda:
        return "cuda", "a CUDA device is available"
    return "cpu", "no CUDA device" if backend.on_gpu else "the backend's only one"
