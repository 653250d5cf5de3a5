"""Memory that tasks borrow while they run: from pools that stay, with a place per thread.

A task that allocates a hundred kilobytes pays for the pages that the system takes back and clears
in between: attention of one row over 40 tokens took 31 µs, most of it for that.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from spaninfer_host_limits import usable_cpus

from spaninfer_kernels_cpu.codegen import atomics
from spaninfer_kernels_cpu.codegen.array_view import numbers_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.memory import CACHE_LINE, aligned, whole_lines

_PLACES_PER_CPU = 2  # two thread pools may run at a time; threads of more wait for each other


def scratch_pool(num_bytes: int) -> int:
    """Return the address of this process's pool of places of that many bytes."""
    return int(_pool(whole_lines(num_bytes)).ctypes.data)


@cache
def _pool(num_bytes: int) -> NDArray[np.int64]:
    """A line: how many places, and bytes from one to the next. A place: a line, its memory.

    The first word of its line says whether a place is taken. The system gives memory when it is
    used.
    """
    places, stride = _PLACES_PER_CPU * usable_cpus(), CACHE_LINE + num_bytes
    pool = aligned((CACHE_LINE + places * stride,), np.uint8).view(np.int64)
    pool[:2] = places, stride
    for place in range(places):
        pool[(CACHE_LINE + place * stride) // 8] = 0
    return pool


@device_function
def acquire(pool: int, task: int) -> int:
    """Return the address of memory that is the caller's until `give_back`; it holds anything.

    Tasks of different numbers look in different places first.
    """
    sizes = numbers_at(pool, 2, np.int64)
    number = task % sizes[0]
    while True:
        place: int = pool + CACHE_LINE + number * sizes[1]
        if atomics.load(place) == 0 and atomics.replace(place, 0, 1):
            return place + CACHE_LINE
        number = (number + 1) % sizes[0]
        if number == task % sizes[0]:
            atomics.pause()


@device_function
def give_back(memory: int) -> None:
    """Let others have what was borrowed."""
    atomics.store(memory - CACHE_LINE, 0)
