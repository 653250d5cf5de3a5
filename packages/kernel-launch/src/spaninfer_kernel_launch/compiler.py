"""From a variant to a cubin, through NVRTC: no GPU, no toolkit on the machine.

Compiler and headers come from wheels (the extras cu12 and cu13) and are found by cuda.pathfinder.
They are imported when something is compiled, not before.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache as once
from typing import Any

from spaninfer_kernel_launch.cache import FileCache
from spaninfer_kernel_launch.errors import CompileError, CompilerMissing
from spaninfer_kernel_launch.report import CompileReport, read_reports
from spaninfer_kernel_launch.variant import Variant

_OPTIONS = ("--std=c++17", "--ptxas-options=-v", "--define-macro=NDEBUG")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel for one architecture: its machine code and what the assembler said about it."""

    entry: str
    arch: str
    cubin: bytes
    log: str

    @property
    def reports(self) -> dict[str, CompileReport]:
        """Registers, spills and shared memory of every kernel of the translation unit."""
        return read_reports(self.log)

    @property
    def report(self) -> CompileReport:
        """Those of the entry point. Raises CompileError where the log does not say."""
        if (found := self.reports.get(self.entry)) is None:
            about = f"the compiler's log does not speak of kernel {self.entry}"
            raise CompileError(about, self.log)
        return found


def compile_variant(variant: Variant, arch: str, cache: FileCache | None = None) -> Compiled:
    """Return `variant` compiled for `arch`, from `cache` where it is known.

    Raises CompileError with the compiler's log where it refuses, CompilerMissing (which names the
    extra to install) where there is no compiler.
    """
    if arch not in variant.architectures:
        raise CompileError(f"{variant} is for {', '.join(variant.architectures)}, not for {arch}")
    key = _key(variant, arch)
    if cache is not None and (known := cache.find(key)) is not None:
        log, _, cubin = known.partition(b"\0")
        return Compiled(variant.entry, arch, cubin, log.decode())
    compiled = _compile(variant, arch)
    if cache is not None:
        with suppress(OSError):  # a folder that cannot be written costs the next start its time
            cache.keep(key, compiled.log.encode() + b"\0" + compiled.cubin)
    return compiled


def _key(variant: Variant, arch: str) -> str:
    """Return the hash of all that the cubin depends on."""
    parts = (variant.text, arch, *_OPTIONS, str(compiler_version()))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def compiler_version() -> tuple[int, int]:
    """Return NVRTC's version, such as (13, 2). Raises CompilerMissing where there is none."""
    error, major, minor = _nvrtc().nvrtcVersion()
    assert int(error) == 0, error
    return major, minor


def _compile(variant: Variant, arch: str) -> Compiled:
    """Return the kernel as NVRTC makes it."""
    nvrtc = _nvrtc()
    options = [
        *(f"--gpu-architecture={arch}", *_OPTIONS),
        *(f"--include-path={folder}" for folder in _include_folders()),
    ]
    if compiler_version() >= (12, 9):
        # Where a driver is present, NVRTC has kept cubins in the driver's cache since 12.9, without
        # their logs: what comes from there has no registers and spills to tell.
        options.append("--no-cache")
    error, program = nvrtc.nvrtcCreateProgram(
        variant.text.encode(), variant.source.path.encode(), 0, [], []
    )
    assert int(error) == 0, error
    try:
        (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        log = _bytes_of(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        text = log.rstrip(b"\0").decode(errors="replace")
        if int(error) != 0:
            raise CompileError(f"{variant} does not compile for {arch}: {error.name}", text)
        cubin = _bytes_of(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        return Compiled(variant.entry, arch, cubin, text)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _bytes_of(program: Any, size_of: Any, copy: Any) -> bytes:
    """Return one of NVRTC's results: ask for its size, then for the bytes."""
    error, size = size_of(program)
    assert int(error) == 0, error
    buffer = bytearray(size)
    (error,) = copy(program, buffer)
    assert int(error) == 0, error
    return bytes(buffer)


@once
def _nvrtc() -> Any:
    """Return the module that binds NVRTC, its library loaded."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as missing:
        raise CompilerMissing("cuda-bindings") from missing
    from cuda.pathfinder import DynamicLibNotFoundError

    try:
        nvrtc.nvrtcVersion()
    except (RuntimeError, DynamicLibNotFoundError) as missing:
        raise CompilerMissing("NVRTC") from missing
    return nvrtc


@once
def _include_folders() -> tuple[str, ...]:
    """Return the folder of cuda_fp16.h and its kin, and that of <nv/target>.

    The latter (cccl) only serves headers of CUDA 12: NVRTC 13 has its own.
    """
    from cuda.pathfinder import find_nvidia_header_directory

    runtime, libraries = (find_nvidia_header_directory(name) for name in ("cudart", "cccl"))
    if runtime is None:
        raise CompilerMissing("cuda_fp16.h")
    return (runtime,) if libraries is None else (runtime, libraries)
