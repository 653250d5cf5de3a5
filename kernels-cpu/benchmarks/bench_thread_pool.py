"""Latency between calls of a thread pool, alone and beside a process that competes for a CPU.

One JSON record per case: microseconds per call of a script whose calls do nothing, or read a part
of an array that no cache holds; medians over rounds, which alternate between the cases.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numba import njit
from spaninfer_host_limits import usable_cpus
from spaninfer_kernels_cpu import Arguments, Call, Script, ThreadPool
from spaninfer_kernels_cpu.codegen.array_view import floats_at

CALLS, TASKS, ROUNDS = 300, 16, 40
NUMBERS = 1 << 15  # float32 that a task reads: 128 KiB, about what a panel of weights takes


@dataclass(frozen=True, slots=True)
class Part(Arguments):
    """Numbers that tasks share, and a sum for each."""

    numbers: int
    sums: int


def do_nothing(arguments: Part, tokens: int, task: int) -> None:
    """Cost what a call costs at least."""


def read_part(arguments: Part, tokens: int, task: int) -> None:  # noqa: ARG001
    """Sum a part of an array into a number of its own."""
    source = arguments.numbers + task * NUMBERS * 4
    floats_at(arguments.sums + task * 4, 1)[0] = _sum(source)


@njit(fastmath=True)
def _sum(address: int) -> np.float32:
    total = np.float32(0)
    for number in floats_at(address, NUMBERS):
        total += number
    return total


def main() -> None:
    """Print a record per kernel, number of threads, and company."""
    for beside in (0, 1):
        with _busy_processes(beside):
            for threads in sorted({1, usable_cpus()}):
                with ThreadPool(threads) as thread_pool:
                    for name, script in _scripts().items():
                        print(json.dumps(_measure(name, script, thread_pool, beside)), flush=True)


def _scripts() -> dict[str, Script]:
    arrays = np.ones((CALLS // 10, TASKS * NUMBERS), np.float32)
    sums = np.zeros(TASKS, np.float32)
    _KEPT.extend((arrays, sums))
    return {
        "nothing": Script([Call(do_nothing, Part(0, 0))] * CALLS),
        "read": Script(
            [Call(read_part, Part(row.ctypes.data, sums.ctypes.data)) for row in arrays]
        ),
    }


_KEPT: list[np.ndarray] = []


def _measure(name: str, script: Script, thread_pool: ThreadPool, beside: int) -> dict[str, object]:
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        thread_pool.run(script, [TASKS])
        times.append(1e6 * (time.perf_counter() - begin) / len(script))
    return {
        "benchmark": "thread pool",
        "calls": name,
        "threads": thread_pool.num_threads,
        "busy_processes": beside,
        "us_per_call": round(statistics.median(times), 3),
        "us_per_call_worst": round(max(times), 3),
        "machine": platform.processor() or platform.machine(),
    }


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
