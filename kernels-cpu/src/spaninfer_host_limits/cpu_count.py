"""The number of CPUs that this process may keep busy."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from spaninfer_host_limits.cgroups import cgroup_folders, text_of


@cache
def usable_cpus() -> int:
    """Return the number of CPUs that the scheduler and the cgroup quotas leave to this process.

    At least 1. On systems without affinity masks or cgroups (macOS, Windows), every CPU counts.
    Read once: a process that is moved later keeps its first answer.
    """
    quota = cgroup_quota(cgroup_folders("cpu"))
    return _affinity() if quota is None else max(1, min(_affinity(), quota))


def _affinity() -> int:
    """Return how many CPUs the process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(folders: Iterable[Path]) -> int | None:
    """Return the CPUs that control groups grant, rounded up: the fewest; None without a limit.

    `folders` are theirs (`cgroup_folders`).
    """
    quotas = [_quota(text) for folder in folders for text in _limits(folder)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _limits(folder: Path) -> Iterator[str]:
    """Yield quota and period in microseconds as version 2 of cgroups writes them, or version 1."""
    if (v2 := text_of(folder / "cpu.max")) is not None:
        yield v2
    v1 = [text_of(folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    if None not in v1:
        yield " ".join(map(str, v1))


def _quota(limit_and_period: str) -> int | None:
    """Return the CPUs of a text such as "200000 100000"; None for no limit, "max" or -1."""
    limit, period = limit_and_period.split()
    return None if limit in ("max", "-1") else math.ceil(int(limit) / int(period))
