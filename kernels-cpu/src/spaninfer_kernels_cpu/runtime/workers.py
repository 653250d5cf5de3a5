"""Worker threads that share the tasks of one function.

Whoever is free takes the next task, the calling thread too. A worker that the system starts late
finds nothing left and delays nobody; there is no barrier and nobody spins. (With OpenMP's static
shares and spinning threads, a BLAS that spins on the same two cores made a decode of 35 µs take
2,600 µs. EPYC Zen 3, 2 vCPU, 2026-11-21.)
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.runtime.cpu_count import usable_cpus

Counter = NDArray[np.int64]
COUNTER = types.Array(types.int64, 1, "C")
"""The type of a kernel's first argument: what `next_task` counts in."""


def share(kernel: Callable[..., None], arguments: tuple[Any, ...], num_workers: int) -> None:
    """Call kernel(counter, *arguments) on this thread and on up to num_workers - 1 workers.

    The kernel releases the GIL and takes its tasks from `next_task(counter)`. Returns when all
    tasks are done; what a worker raises is raised here.
    """
    counter = np.zeros(1, np.int64)
    workers = [_threads().submit(kernel, counter, *arguments) for _ in range(num_workers - 1)]
    kernel(counter, *arguments)
    for worker in workers:
        if not worker.cancel():
            worker.result()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, usable_cpus() - 1), thread_name_prefix="spaninfer-kernels")


@device_function
def next_task(counter: Counter) -> int:
    """Return 0, 1, 2, … : every number once, whichever thread asks. For use inside kernels."""
    number: int = _fetch_add(counter.ctypes.data, 1)  # type: ignore[call-arg]
    return number


@intrinsic
def _fetch_add(_context: Any, _address: Any, _step: Any) -> Any:
    """Add to the int64 at an address as one indivisible step; return what was there before."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        address, step = arguments
        pointer = builder.inttoptr(address, step.type.as_pointer())
        return builder.atomic_rmw("add", pointer, step, "monotonic")

    return types.int64(types.int64, types.int64), emit
