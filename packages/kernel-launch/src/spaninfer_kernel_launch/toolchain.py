"""The compiler and its headers: found in wheels (the extras cu12 and cu13), and told apart.

Imported and searched for when something is compiled, not before.
"""

from __future__ import annotations

import hashlib
from functools import cache as once
from pathlib import Path
from typing import Any

from spaninfer_kernel_launch.errors import CompilerMissing

_HEADERS = "cuda_[bf]*.h*"  # of 16-bit and smaller floats: those that sources include
_BEGIN_BYTES = 4096  # of a library hold sizes of all sections, and the build's id where it has one


@once
def nvrtc() -> Any:
    """Return the module that binds NVRTC, its library loaded.

    Raises CompilerMissing (which names the extra to install) where there is none.
    """
    try:
        from cuda.bindings import nvrtc as bound
    except ImportError as missing:
        raise CompilerMissing("cuda-bindings") from missing
    from cuda.pathfinder import DynamicLibNotFoundError

    try:
        bound.nvrtcVersion()
    except (RuntimeError, DynamicLibNotFoundError) as missing:
        raise CompilerMissing("NVRTC") from missing
    return bound


def compiler_version() -> tuple[int, int]:
    """Return NVRTC's version, such as (13, 2). Raises CompilerMissing where there is none."""
    error, major, minor = nvrtc().nvrtcVersion()
    assert int(error) == 0, error
    return major, minor


@once
def include_folders() -> tuple[str, ...]:
    """Return the folder of cuda_fp16.h and its kin, and that of <nv/target>.

    The latter (cccl) only serves headers of CUDA 12: NVRTC 13 has its own.
    """
    from cuda.pathfinder import find_nvidia_header_directory

    runtime, libraries = (find_nvidia_header_directory(name) for name in ("cudart", "cccl"))
    if runtime is None:
        raise CompilerMissing("cuda_fp16.h")
    return (runtime,) if libraries is None else (runtime, libraries)


@once
def toolchain_id() -> str:
    """Return an identity that differs between builds of NVRTC and its headers.

    NVRTC tells no more than major and minor version, so that a bug-fix release looks like the one
    before: its library's size and beginning differ. Headers are taken whole, 0.9 MB in 3 ms.
    """
    digest = hashlib.sha256(str(compiler_version()).encode())
    from cuda.pathfinder import load_nvidia_dynamic_lib

    if (path := load_nvidia_dynamic_lib("nvrtc").abs_path) is not None:
        with Path(path).open("rb") as library:
            digest.update(library.read(_BEGIN_BYTES))
            digest.update(str(Path(path).stat().st_size).encode())
    for header in sorted(Path(include_folders()[0]).glob(_HEADERS)):
        digest.update(header.read_bytes())
    return digest.hexdigest()
