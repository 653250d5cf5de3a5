"""Compilation of a variant to a cubin by NVRTC: needs no GPU and no CUDA toolkit."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache as once
from typing import Any

from spaninfer_kernel_launch.cache import FileCache
from spaninfer_kernel_launch.errors import CompileError, NotCompiled
from spaninfer_kernel_launch.report import CompileReport, read_reports
from spaninfer_kernel_launch.requests import (
    EMPTY_KERNEL,
    KernelRequest,
    is_cached_only,
    record_request,
)
from spaninfer_kernel_launch.signature import Signature
from spaninfer_kernel_launch.source import check_kernels
from spaninfer_kernel_launch.toolchain import (
    compiler_version,
    include_folders,
    nvrtc,
    toolchain_id,
)
from spaninfer_kernel_launch.variant import Variant

_OPTIONS = ("--std=c++17", "--ptxas-options=-v", "--define-macro=NDEBUG")


@dataclass(frozen=True, slots=True)
class Compiled:
    """Kernels for one architecture: their machine code and the assembler's log.

    `kernels` are the signatures of those that can be loaded. One that `is_empty` takes the place of
    a kernel that was only recorded; it has one entry point.
    """

    entry: str
    arch: str
    cubin: bytes
    log: str
    kernels: tuple[Signature[Any], ...] = ()
    is_empty: bool = False

    @property
    def reports(self) -> dict[str, CompileReport]:
        """Registers, spills and shared memory of every kernel of the translation unit."""
        return read_reports(self.log)

    @property
    def report(self) -> CompileReport:
        """The report of the entry point. Raises CompileError where the log does not have it."""
        if (found := self.reports.get(self.entry)) is None:
            about = f"the compiler's log does not speak of kernel {self.entry}"
            raise CompileError(about, self.log)
        return found


def compile_variant(variant: Variant, arch: str, cache: FileCache | None = None) -> Compiled:
    """Return `variant` compiled for `arch`, from `cache` where it is known.

    Raises CompileError with the compiler's log where it refuses, SignatureError where a kernel's
    parameters are not those that `variant.source.kernels` declare, CompilerMissing (which names the
    extra to install) where there is no compiler. Inside of `recording_kernels`, it is recorded
    instead; inside of `cached_only`, NotCompiled is raised where it is not cached.
    """
    if arch not in variant.architectures:
        raise CompileError(f"{variant} is for {', '.join(variant.architectures)}, not for {arch}")
    check_kernels(variant.source)
    request = KernelRequest(variant, arch, cache)
    if record_request(request):
        return _empty_kernel(arch, cache)
    if (found := _find(request)) is not None:
        return found
    if is_cached_only():
        raise NotCompiled(f"{variant} has not been compiled for {arch} yet")
    return _compile_and_keep(request)


def compile_all(
    requests: Iterable[KernelRequest],
    on_progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
) -> None:
    """Compile the kernels that their caches do not have, as many at a time as there are processors.

    `on_progress(done, total)` is called after each. Raises like `compile_variant`.
    """
    missing = [each for each in requests if each.cache is not None and _find(each) is None]
    # Long sources take longest, and must not come last.
    missing.sort(key=lambda each: (-len(each.variant.text), str(each.variant)))
    if not missing:
        return
    on_progress(0, len(missing))
    threads = ThreadPoolExecutor(_usable_processors(), thread_name_prefix="spaninfer-compile")
    try:
        # NVRTC takes any number of threads, and releases the interpreter meanwhile.
        jobs = [
            threads.submit(compile_variant, each.variant, each.arch, each.cache) for each in missing
        ]
        for done, job in enumerate(as_completed(jobs), 1):
            job.result()
            on_progress(done, len(jobs))
    finally:
        threads.shutdown(cancel_futures=True)


def _usable_processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@once
def _empty_kernel(arch: str, cache: FileCache | None) -> Compiled:
    """Return the kernel that does nothing."""
    request = KernelRequest(EMPTY_KERNEL, arch, cache)
    return replace(_find(request) or _compile_and_keep(request), is_empty=True)


_found: dict[KernelRequest, Compiled] = {}
"""The kernels that this process has read from a cache or compiled."""


def _find(request: KernelRequest) -> Compiled | None:
    """Return a kernel from the cache, or None."""
    if request.cache is None:
        return None
    if (found := _found.get(request)) is not None:
        return found
    if (kept := request.cache.find(_key(request.variant, request.arch))) is None:
        return None
    log, _, cubin = kept.partition(b"\0")
    _found[request] = _compiled(request.variant, request.arch, cubin, log.decode())
    return _found[request]


def _compiled(variant: Variant, arch: str, cubin: bytes, log: str) -> Compiled:
    return Compiled(variant.entry, arch, cubin, log, variant.source.kernels)


def _compile_and_keep(request: KernelRequest) -> Compiled:
    """Compile a kernel, or take what another thread or process has compiled meanwhile."""
    if request.cache is None:
        return _compile(request.variant, request.arch)
    key = _key(request.variant, request.arch)
    with request.cache.locked(key):
        if (found := _find(request)) is not None:
            return found
        compiled = _compile(request.variant, request.arch)
        _found[request] = compiled
        request.cache.keep(key, compiled.log.encode() + b"\0" + compiled.cubin)
        return compiled


def _key(variant: Variant, arch: str) -> str:
    """Return the hash of all that the cubin depends on."""
    parts = (variant.text, arch, *_OPTIONS, toolchain_id())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _compile(variant: Variant, arch: str) -> Compiled:
    """Return the kernel as NVRTC makes it."""
    bound = nvrtc()
    options = [
        *(f"--gpu-architecture={arch}", *_OPTIONS),
        *(f"--include-path={folder}" for folder in include_folders()),
    ]
    if compiler_version() >= (12, 9):
        # Where a driver is present, NVRTC has kept cubins in the driver's cache since 12.9, without
        # their logs: kernels from there have no report of registers and spills.
        options.append("--no-cache")
    error, program = bound.nvrtcCreateProgram(
        variant.text.encode(), variant.source.path.encode(), 0, [], []
    )
    assert int(error) == 0, error
    try:
        (error,) = bound.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        log = _bytes_of(program, bound.nvrtcGetProgramLogSize, bound.nvrtcGetProgramLog)
        text = log.rstrip(b"\0").decode(errors="replace")
        if int(error) != 0:
            raise CompileError(f"{variant} does not compile for {arch}: {error.name}", text)
        cubin = _bytes_of(program, bound.nvrtcGetCUBINSize, bound.nvrtcGetCUBIN)
        return _compiled(variant, arch, cubin, text)
    finally:
        bound.nvrtcDestroyProgram(program)


def _bytes_of(program: Any, size_of: Any, copy: Any) -> bytes:
    """Return one of NVRTC's results: ask for its size, then for the bytes."""
    error, size = size_of(program)
    assert int(error) == 0, error
    buffer = bytearray(size)
    (error,) = copy(program, buffer)
    assert int(error) == 0, error
    return bytes(buffer)
