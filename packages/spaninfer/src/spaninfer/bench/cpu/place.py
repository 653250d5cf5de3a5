"""The environment of a benchmark: number of CPUs, instructions, and competing load."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from spaninfer_host_limits import usable_cpus
from spaninfer_kernels_cpu import active_level

from spaninfer.bench.records import circumstances, load


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Run that many competing processes, each pinned to one of this process's CPUs in turn.

    The system cannot move them out of the way, as it would where another CPU is free.
    """
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None]
    with ExitStack() as stack:
        for cpu in islice(cycle(cpus), processes):
            where = () if cpu is None else (str(cpu),)
            command = (sys.executable, "-c", _COMPUTE, str(os.getpid()), *where)
            process = stack.enter_context(subprocess.Popen(command))
            stack.callback(process.kill)
        yield


_COMPUTE = """
import os
import sys
parent, *cpus = map(int, sys.argv[1:])
if cpus:
    os.sched_setaffinity(0, cpus)
while os.getppid() == parent:  # a benchmark that is killed cannot end this process
    for _ in range(1_000_000):
        pass
"""


def place(beside: int = 0) -> dict[str, Any]:
    """Return the circumstances of records, `beside` that many busy processes.

    `load` is the system's mean of the last minute: ask at first, for what is measured is a load.
    `cpus` are those that this process may use, None where the system keeps none to some of them;
    `physical_cores`: on how many cores these are, None where it does not say. Two threads of one
    core share what multiplies. A virtual machine may call threads cores.
    """
    fields = circumstances("cpu")
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return fields | {
        "device": fields["cpu"],
        "threads": usable_cpus(),
        "cpus": cpus,
        "physical_cores": None if cpus is None else physical_cores(cpus),
        "tier": active_level().name,
        "load": load(),
        "beside": beside,
    }


_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def physical_cores(cpus: Iterable[int], siblings: str = _SIBLINGS) -> int | None:
    """Return on how many cores these CPUs are, by what Linux says of each in a file of this name.

    None where it says nothing.
    """
    try:
        return len({Path(siblings.format(cpu)).read_text(encoding="ascii") for cpu in cpus})
    except OSError:
        return None
