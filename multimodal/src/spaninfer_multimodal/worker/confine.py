"""Limits of a decoder process on the machine."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping

_KEPT = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR", "TEMP")
"""Variables that interpreters and libraries need to start; no others are passed on."""


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a decoder process: no secrets, one thread per library."""
    kept = {name: inherited[name] for name in _KEPT if name in inherited}
    return kept | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
    }


def confine(max_memory_bytes: int) -> None:
    """Limit this process for good: memory, no file that grows, no core dump.

    Linux enforces the limit of memory (RLIMIT_DATA counts what is written, not what is only
    reserved); macOS accepts it without effect, and Windows has none: there the limits on sizes
    and the time limit remain.
    """
    warnings.simplefilter("ignore")  # of damaged data: they are not read here
    if sys.platform == "win32":
        return
    import resource

    for limit, most in (
        (resource.RLIMIT_DATA, max_memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(limit)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, most))
