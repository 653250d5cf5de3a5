"""Folders that are filled once and read at every start."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from spaninfer_engine.tools import cache_folder

from spaninfer.doctor.finding import Finding, Verdict

if TYPE_CHECKING:
    from spaninfer_kernels_cpu import CacheReport

_LITTLE_BYTES = 2 << 30


def check_caches() -> Iterator[Finding]:
    """Yield where models and compiled kernels are kept, and whether there is room."""
    from spaninfer_kernels_cpu import kernel_cache_report  # it imports Numba

    yield check_folder("models", cache_folder(), "HF_HOME")
    yield check_kernels(kernel_cache_report())
    if find_spec("spaninfer_kernel_launch") is None:  # of an extra
        return
    from spaninfer_kernel_launch import user_cache

    if (kernels := user_cache().folder) is not None:
        yield check_folder("GPU kernels", kernels, "XDG_CACHE_HOME")


def check_kernels(found: CacheReport) -> Finding:
    """Return where compiled CPU kernels are kept, and whether the next start finds them there."""
    size = f"{found.num_bytes / 2**20:,.1f} MiB"
    if found.is_lasting:
        return Finding("CPU kernels", f"{found.folder}, {size}")
    refused = "; ".join(f"{folder}: {reason}" for folder, reason in found.refused.items())
    why = f" ({refused})" if refused else ""
    way_out = "set NUMBA_CACHE_DIR to a folder of yours that can be written"
    if found.folder is not None:
        seen = f"{found.folder}, {size}, which may be emptied at any time{why}"
    elif found.num_bytes:
        seen = f"{size} that are read; new ones are compiled again at every start{why}"
    else:
        seen = f"kept in memory: every start compiles them again{why}"
    return Finding("CPU kernels", seen, Verdict.NOTE, way_out)


def check_folder(what: str, folder: Path, variable: str) -> Finding:
    """Return whether a folder, or the nearest one above it that exists, can be written."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK):
        way_out = f"set {variable} to a folder that can be written"
        return Finding(what, f"{folder} cannot be written", Verdict.NOTE, way_out)
    free = shutil.disk_usage(there).free
    seen = f"{folder}, {free / 2**30:,.0f} GiB free"
    if free < _LITTLE_BYTES:
        return Finding(what, seen, Verdict.NOTE, f"make room, or set {variable} to a larger disk")
    return Finding(what, seen)
