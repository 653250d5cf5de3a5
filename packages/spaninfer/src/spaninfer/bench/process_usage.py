"""CPU time and memory of other processes, where the system reports them (Linux)."""

from __future__ import annotations

import os
import re
from pathlib import Path


def children(pid: int) -> list[int]:
    """Return the processes that a process has started; none where the system does not say."""
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, listed.read_text(encoding="utf-8").split())
        except OSError:  # the thread has ended meanwhile
            continue
    return sorted(found)


def tree(pid: int) -> list[int]:
    """Return a process and all below it."""
    return [pid, *(each for child in children(pid) for each in tree(child))]


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far, in seconds; 0 where it is not reported."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    user, system = map(int, fields[11:13])  # utime and stime of proc(5), in ticks
    return (user + system) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int, name: str = "VmRSS") -> float | None:
    """Return what memory a process has, or with "VmHWM" has had; None where it is not reported."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    return None if found is None else round(int(found[1]) / 1024, 1)
