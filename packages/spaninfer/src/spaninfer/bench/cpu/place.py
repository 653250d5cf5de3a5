"""Where a benchmark runs: on how many CPUs, with which instructions, and beside how much else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from typing import Any

from spaninfer_engine import ConfigError
from spaninfer_kernels_cpu import usable_cpus
from spaninfer_kernels_cpu.tiers import chosen

from spaninfer.bench.records import circumstances


def keep_to(threads: int) -> None:
    """Keep this thread, and those it starts, to as many CPUs: engine and peer get the same ones.

    Raises ConfigError where the machine has fewer, where the system cannot do it, and where the
    kernels of this process have counted other CPUs before: they count once.
    """
    if not hasattr(os, "sched_setaffinity"):
        if threads == usable_cpus():
            return
        raise ConfigError("this system keeps no process to a few CPUs; leave --threads out")
    cpus = sorted(os.sched_getaffinity(0))
    if threads > len(cpus):
        raise ConfigError(f"--threads is {threads}, but this process may use {len(cpus)} CPUs")
    os.sched_setaffinity(0, cpus[:threads])
    if usable_cpus() != threads:
        os.sched_setaffinity(0, cpus)
        raise ConfigError(f"--threads is {threads}, but kernels are set to {usable_cpus()} here")


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Have so many processes compute meanwhile, each kept to one of this process's CPUs in turn.

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
    """Return the circumstances of records, `beside` so many busy processes.

    `load` is the system's mean of the last minute: ask at first, for what is measured is a load.
    """
    fields = circumstances("cpu")
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return fields | {
        "device": fields["cpu"],
        "threads": usable_cpus(),
        "tier": chosen().name,
        "load": load,
        "beside": beside,
    }
