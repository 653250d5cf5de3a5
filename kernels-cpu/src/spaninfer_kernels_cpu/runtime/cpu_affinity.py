"""CPU affinity of a pool's workers, where the pool has a thread for every CPU.

Left alone, the system puts two threads of a pool on one CPU as soon as another program keeps a
second one busy: to be fair to three that run on two CPUs, it moves them about. So workers are kept
to CPUs, one each, and the caller, whom the system goes on moving, gets the one that is left: before
each script, a worker that sits where the caller is changes places with it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence


class CpuAffinity:
    """The CPUs of workers, which are named by the system's numbers of their threads.

    `cpus` are one more than workers: the caller's too. `place` is where the calling thread runs.
    """

    def __init__(
        self, workers: Sequence[int], cpus: Sequence[int], place: Callable[[], int]
    ) -> None:
        self._place = place
        here = place()
        others = [cpu for cpu in cpus if cpu != here]
        self._free = here if here in cpus else others.pop()
        self._taken: dict[int, int] = {}
        for worker, cpu in zip(workers, others, strict=True):
            self._pin(worker, cpu)

    def keep_apart(self) -> None:
        """Keep workers off the CPU of the calling thread."""
        here = self._place()
        worker = self._taken.pop(here, None)
        if worker is not None:
            self._pin(worker, self._free)
            self._free = here

    def _pin(self, worker: int, cpu: int) -> None:
        """Keep a worker to a CPU; the system may refuse one that was taken away meanwhile."""
        try:
            os.sched_setaffinity(worker, {cpu})
        except OSError:
            return
        self._taken[cpu] = worker


def cpu_affinity_for(workers: Sequence[int]) -> CpuAffinity | None:
    """Pin that many workers; None where the system, or who started us, places them."""
    if sys.platform != "linux":
        return None
    cpus = sorted(os.sched_getaffinity(0))
    if not workers or len(cpus) != len(workers) + 1:
        return None
    system = ctypes.PyDLL(None)  # keeps Python's lock, which others would be glad to take
    return CpuAffinity(workers, cpus, system.sched_getcpu)
