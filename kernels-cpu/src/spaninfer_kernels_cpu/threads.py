"""How many threads this process may keep busy: the only file that asks the machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")


@cache
def usable_cpus() -> int:
    """Return the number of CPUs that the scheduler and the cgroup quotas leave to this process.

    At least 1. On systems without affinity masks or cgroups (macOS, Windows), every CPU counts.
    Read once: a process that is moved later keeps its first answer.
    """
    quota = cgroup_quota(_read(_OWN) or "", _CGROUPS)
    return _affinity() if quota is None else max(1, min(_affinity(), quota))


def _affinity() -> int:
    """Return how many CPUs the process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(own: str, folder: Path) -> int | None:
    """Return the CPUs that cgroups grant, rounded up; None where they set no limit.

    `own` is the text of /proc/self/cgroup, `folder` where the trees are mounted. The limits of a
    cgroup hold for those inside of it, so the smallest on the way to the root counts. A container
    may see its own cgroup as the root of what is mounted, yet be told its path on the host.
    """
    quotas = [_quota(text) for place in _places(own) for text in _limits(folder, place)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _places(own: str) -> Iterator[PurePosixPath]:
    """Yield the folders, below the mounted ones, of the cgroups that may limit CPUs."""
    trees = [line.split(":", 2) for line in own.splitlines() if line.count(":") >= 2]
    paths = [path for _, kinds, path in trees if not kinds or "cpu" in kinds.split(",")]
    for path in paths or ["/"]:
        place = PurePosixPath(path.lstrip("/"))
        yield from (place, *place.parents)


def _limits(folder: Path, place: PurePosixPath) -> Iterator[str]:
    """Yield quota and period in microseconds as version 2 of cgroups writes them, or version 1."""
    if (v2 := _read(folder / place / "cpu.max")) is not None:
        yield v2
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    v1 = [_read(folder / "cpu" / place / name) for name in names]
    if None not in v1:
        yield " ".join(map(str, v1))


def _quota(limit_and_period: str) -> int | None:
    """Return the CPUs of a text such as "200000 100000"; None for no limit, "max" or -1."""
    limit, period = limit_and_period.split()
    return None if limit in ("max", "-1") else math.ceil(int(limit) / int(period))


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
