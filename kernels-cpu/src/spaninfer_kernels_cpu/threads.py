"""How many threads this process may keep busy: the only file that asks the machine."""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path

_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")


@cache
def usable_cpus() -> int:
    """Return the number of CPUs that the scheduler and the cgroup quota leave to this process.

    At least 1. On systems without affinity masks or cgroups (macOS, Windows), every CPU counts.
    Read once: a process that is moved later keeps its first answer.
    """
    allowed = _affinity()
    quota = _quota(_read(_CGROUP_V2), _read_v1())
    return allowed if quota is None else max(1, min(allowed, quota))


def _affinity() -> int:
    """Return how many CPUs the process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota(v2: str | None, v1: tuple[str, str] | None) -> int | None:
    """Return the CPUs that cgroup files grant, rounded up; None where they set no limit.

    `v2` is the text of cpu.max ("200000 100000", or "max 100000"); `v1` the texts of
    cpu.cfs_quota_us and cpu.cfs_period_us (a quota of -1 is no limit).
    """
    if v2 is not None:
        limit, period = v2.split()
    elif v1 is not None:
        limit, period = v1
    else:
        return None
    if limit.strip() in ("max", "-1"):
        return None
    return math.ceil(int(limit) / int(period))


def _read_v1() -> tuple[str, str] | None:
    limit, period = _read(_CGROUP_V1 / "cpu.cfs_quota_us"), _read(_CGROUP_V1 / "cpu.cfs_period_us")
    return None if limit is None or period is None else (limit, period)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
