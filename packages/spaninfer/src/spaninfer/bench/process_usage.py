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


def cpu_wait_s(pid: int) -> float | None:
    """Return how long the threads of a process were ready without a CPU so far, in seconds; None
    where it is not reported.
    """
    try:
        texts = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    except OSError:  # a thread has ended meanwhile
        return None
    return sum(int(text.split()[1]) for text in texts) / 1e9 if texts else None


def busy_cpus_s() -> float | None:
    """Return the CPU time of all processes so far, in seconds; None where it is not reported."""
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq = map(int, fields[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int, name: str = "VmRSS") -> float | None:
    """Return what memory a process has, or with "VmHWM" has had; None where it is not reported."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    return None if found is None else round(int(found[1]) / 1024, 1)
