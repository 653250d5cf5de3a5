"""The CPUs that this process keeps to."""

from __future__ import annotations

import os

from spaninfer_engine import ConfigError
from spaninfer_host_limits import usable_cpus


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
