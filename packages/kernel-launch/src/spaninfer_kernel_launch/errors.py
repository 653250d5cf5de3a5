"""Every error this package raises.

KernelError
├── ShapeError           an argument does not have the shape that the kernel demands
├── DTypeError           an argument is no array, or holds elements that the kernel does not take
├── DeviceError          an argument lies in other memory than the kernel works on
├── StreamMissing        it is not said on which stream to launch, and no framework says it
├── CompileError         the compiler refused the source or a request
│   ├── SignatureError   a kernel's parameters are not those that Python declares
│   ├── CompilerMissing  NVRTC or its headers are not installed
│   └── NotCompiled      no cache has the kernel, and none was to be compiled
└── DriverError          the driver refused
    ├── GpuMissing       there is no driver, no such GPU, or the package that binds the driver
    ├── GpuTooOld        there is no kernel for the architecture of this GPU
    └── OutOfMemory      the GPU's memory does not suffice
"""

from __future__ import annotations


class KernelError(Exception):
    """Root of every error raised by this package."""


class ShapeError(KernelError, ValueError):
    """An argument does not have the shape that the kernel demands."""


class DTypeError(KernelError, TypeError):
    """An argument is no array, or holds elements that the kernel does not take."""


class DeviceError(KernelError, ValueError):
    """An argument lies in other memory than the kernel works on."""


class StreamMissing(KernelError, ValueError):
    """It is not said on which stream to launch, and no framework says it."""


WAY_TO_EXTRA = (
    "pip install './packages/kernel-launch[cu13]' in the root of the checkout "
    "([cu12] for drivers of CUDA 12)"
)


class CompileError(KernelError):
    """The compiler refused the source or a request; `log` is its text."""

    def __init__(self, message: str, log: str = "") -> None:
        self.log = log
        super().__init__(f"{message}\n{log}" if log else message)


class SignatureError(CompileError):
    """A kernel's parameters are not those that Python declares."""


class CompilerMissing(CompileError):
    """NVRTC or its headers are not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"cannot compile CUDA kernels: {what} is not installed; {WAY_TO_EXTRA}")


class NotCompiled(CompileError):
    """No cache has the kernel, and none was to be compiled."""


class DriverError(KernelError):
    """The driver refused."""


class GpuMissing(DriverError):
    """There is no driver, no such GPU, or the package that binds the driver is not installed."""


class GpuTooOld(DriverError):
    """There is no kernel for the architecture of this GPU."""


class OutOfMemory(DriverError, MemoryError):
    """The GPU's memory does not suffice."""
