"""NVIDIA GPUs, and whether what they need is installed."""

from __future__ import annotations

from collections.abc import Iterator

from spaninfer_engine.tools import has_driver, this_machine

from spaninfer.doctor.finding import Finding, Verdict

_EXTRA = "python3 -m nox -s install -- cuda, in the root of the checkout"


def check_gpu() -> Iterator[Finding]:
    """Yield driver, device and compiler; one finding where there is no driver."""
    if not has_driver():
        yield Finding("GPU", "no NVIDIA driver: models run on the CPU")
        return
    machine = this_machine()
    if not machine.has_kernels:
        yield Finding("GPU", "a driver, but no kernels for it", Verdict.WRONG, _EXTRA)
        return
    if not machine.has_cuda:
        way_out = "install a torch that is built for CUDA, or a newer driver"
        yield Finding("GPU", "a driver, and torch sees no device", Verdict.WRONG, way_out)
        return
    yield from _check_device()


def _check_device() -> Iterator[Finding]:
    """Yield what the first device is, and what compiles for it."""
    from spaninfer_kernel_launch import (  # of an extra
        CompilerMissing,
        KernelError,
        compiler_version,
        get_gpu,
    )

    try:
        gpu = get_gpu()
        yield Finding("GPU", f"{gpu.name}, {gpu.arch}, {gpu.sm_count} multiprocessors")
        yield Finding("compiler", "NVRTC {}.{}".format(*compiler_version()))
    except CompilerMissing as missing:
        yield Finding("compiler", str(missing), Verdict.WRONG, _EXTRA)
    except KernelError as refused:
        yield Finding("GPU", str(refused), Verdict.WRONG, "--backend torch may use it")
