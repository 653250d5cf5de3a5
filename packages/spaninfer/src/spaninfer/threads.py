"""The CPUs that this process keeps to, and what of a server shares them."""

from __future__ import annotations

import os
import sys

from spaninfer_engine import ConfigError
from spaninfer_host_limits import usable_cpus


def keep_to(threads: int) -> None:
    """Keep this thread, and those it starts, to as many CPUs: engine and peer get the same ones.

    Raises ConfigError where the machine has fewer, where the system cannot do it, and where the
    kernels of this process have counted other CPUs before: they count once.
    """
    if threads < 1:
        raise ConfigError(f"--threads is {threads}; allowed is 1 to {usable_cpus()}")
    if not hasattr(os, "sched_setaffinity"):
        if threads == usable_cpus():
            return
        raise ConfigError("this system cannot confine a process to CPUs; omit --threads")
    cpus = sorted(os.sched_getaffinity(0))
    if threads > len(cpus):
        raise ConfigError(f"--threads is {threads}, but this process may use {len(cpus)} CPUs")
    os.sched_setaffinity(0, cpus[:threads])
    if usable_cpus() != threads:
        os.sched_setaffinity(0, cpus)
        raise ConfigError(f"--threads is {threads}, but kernels are set to {usable_cpus()} here")


def num_api_servers(asked: int | None, threads: int | None = None) -> int:
    """Return how many processes answer requests beside the engine's, of a server that keeps to so
    many CPUs: as requested, or one where there is a CPU for each of the two.

    On two cores one answers 1.9 times as many short requests as the engine's process does alone,
    for less CPU time in all (EPYC, Zen 4, 2026-11-23: docs/measurements/server.md).
    """
    if asked is not None:
        return asked
    cpus = usable_cpus() if threads is None else threads
    return int(cpus > 1 and sys.platform != "win32")


def described_processes(api_servers: int) -> str:
    """Return the processes of a server in words.

    >>> described_processes(0)
    'processes: one, which computes and answers requests'
    >>> described_processes(2)
    'processes: the engine, and 2 API servers, which answer requests'
    """
    if not api_servers:
        return "processes: one, which computes and answers requests"
    each = (
        "an API server, which answers"
        if api_servers == 1
        else f"{api_servers} API servers, which answer"
    )
    return f"processes: the engine, and {each} requests"
