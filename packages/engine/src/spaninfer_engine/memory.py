"""How much memory there is; asks the operating system."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from spaninfer_kernels_cpu import cgroup_folders, text_of

HOST_SHARE = 0.5
"""Share of the available host memory that spans may take where the caller names no limit.

The rest is for weights that are in the page cache only, activations and other processes.
"""

DEVICE_SHARE = 0.9
"""The same of a device's memory, which nobody else needs; the rest is for activations."""


_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_bytes() -> int:
    """Return the memory that this process can take without pushing others out.

    The kernel's estimate where there is one (Linux), else half of the physical memory; never more
    than what the control groups around it still grant.
    """
    limits = (_meminfo(), cgroup_bytes(cgroup_folders("memory")))
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else _physical_bytes() // 2


def _meminfo() -> int | None:
    for line in (text_of(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def cgroup_bytes(folders: Iterable[Path]) -> int | None:
    """Return what control groups leave, the least of all; None without a limit.

    `folders` are theirs (`cgroups.cgroup_folders`). Pages of files that nobody has used for a while
    count as free: the kernel gives them up first, and a checkpoint that was read may be most of
    what a group has.
    """
    left = [_left(folder, *names) for folder in folders for names in (_V2, _V1)]
    return min((count for count in left if count is not None), default=None)


def _left(folder: Path, limit_name: str, used_name: str, idle_name: str) -> int | None:
    limit, used, stat = (
        text_of(folder / name) or "" for name in (limit_name, used_name, "memory.stat")
    )
    if not (limit.strip().isdigit() and used.strip().isdigit()):
        return None
    numbers = dict(line.split() for line in stat.splitlines())
    return max(0, int(limit) - int(used) + int(numbers.get(idle_name, 0)))


def _physical_bytes() -> int:
    """Return the size of the memory; 8 GiB where the system does not say (Windows)."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return 8 << 30
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
