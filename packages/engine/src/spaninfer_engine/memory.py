"""How much memory there is; asks the operating system."""

from __future__ import annotations

import os
from pathlib import Path

HOST_SHARE = 0.5
"""Share of the available host memory that spans may take where the caller names no limit.

The rest is for weights that are in the page cache only, activations and other processes.
"""

DEVICE_SHARE = 0.9
"""The same of a device's memory, which nobody else needs; the rest is for activations."""


def available_bytes() -> int:
    """Return the memory that this process can take without pushing others out.

    The kernel's estimate where there is one (Linux), else half of the physical memory; never more
    than what the control group still grants.
    """
    limits = (_meminfo(), _cgroup())
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else _physical_bytes() // 2


def _meminfo() -> int | None:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup() -> int | None:
    """Return what a version 2 control group leaves; None without a limit."""
    limit = _text("/sys/fs/cgroup/memory.max").strip()
    used = _text("/sys/fs/cgroup/memory.current").strip()
    return max(0, int(limit) - int(used)) if limit.isdigit() and used.isdigit() else None


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _physical_bytes() -> int:
    """Return the size of the memory; 8 GiB where the system does not say (Windows)."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return 8 << 30
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
