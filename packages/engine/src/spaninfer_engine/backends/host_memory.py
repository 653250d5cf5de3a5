"""The memory of this machine, as the operating system reports it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

from spaninfer_host_limits import cgroup_folders, text_of

HOST_SHARE = 0.5
"""Share of the available host memory that spans may take where the caller names no limit.

The rest is for weights that are in the page cache only, activations and other processes.
"""

DEVICE_SHARE = 0.9
"""The same of a device's memory, which is the engine's alone; the rest is for activations."""


_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_bytes() -> int:
    """Return the memory that this process can take without pushing others out.

    The kernel's estimate where there is one (Linux), else half of the physical memory; never more
    than what the control groups around it still grant, or its address space (`ulimit -v`).
    """
    estimate, left = _meminfo(), address_space_left()
    granted = cgroup_bytes(cgroup_folders("memory"))
    known = [each for each in (estimate, granted) if each is not None]
    return min([*(known or [_physical_bytes() // 2]), *([] if left is None else [left])])


def total_bytes() -> int:
    """Return the memory that this process could have were it alone.

    The physical memory, or less where a control group or the address space is limited.
    """
    folders = cgroup_folders("memory")
    texts = [text_of(folder / name[0]) or "" for folder in folders for name in (_V2, _V1)]
    limits = [int(text) for text in texts if text.strip().isdigit()]
    return min([_physical_bytes(), *limits, *filter(None, [_address_space()])])


def address_space_left() -> int | None:
    """Return what this process may still map; None without a limit."""
    limit = _address_space()
    return None if limit is None else max(0, limit - _mapped_bytes())


def _address_space() -> int | None:
    """Return what `ulimit -v` leaves a process; None without a limit."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def _mapped_bytes() -> int:
    """Return how much of its address space this process uses; 0 where the system does not say."""
    pages = (text_of(Path("/proc/self/statm")) or "0").split()[0]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _meminfo() -> int | None:
    for line in (text_of(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def cgroup_bytes(folders: Iterable[Path]) -> int | None:
    """Return what control groups leave, the least of all; None without a limit.

    `folders` are theirs (`cgroups.cgroup_folders`). Pages of files that were not used for a while
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
