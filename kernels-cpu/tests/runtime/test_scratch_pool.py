"""Scratch memory: one borrower at a time."""

from dataclasses import dataclass

import numpy as np
from spaninfer_kernels_cpu.codegen.arguments import Arguments
from spaninfer_kernels_cpu.codegen.array_view import numbers_at
from spaninfer_kernels_cpu.runtime.call import Call, Script
from spaninfer_kernels_cpu.runtime.scratch_pool import acquire, give_back, scratch_pool
from spaninfer_kernels_cpu.runtime.thread_pool import ThreadPool

NUMBERS = 1000


@dataclass(frozen=True, slots=True)
class PoolArguments(Arguments):
    pool: int
    wrong: int


def write_and_read(arguments: PoolArguments, tokens: int, task: int) -> None:  # noqa: ARG001
    """Fill borrowed memory, and count what of it was not there any more."""
    memory = acquire(arguments.pool, task)
    numbers = numbers_at(memory, NUMBERS, np.int64)
    for i in range(NUMBERS):
        numbers[i] = task
    wrong = numbers_at(arguments.wrong, task + 1, np.int64)
    for i in range(NUMBERS):
        wrong[task] += numbers[i] != task
    give_back(memory)


def test_what_a_task_borrows_is_its_own():
    """Also where more threads want some than there are places."""
    pool, wrong = scratch_pool(8 * NUMBERS - 24), np.zeros(20_000, np.int64)
    call = Call(write_and_read, PoolArguments(pool, wrong.ctypes.data))

    with ThreadPool(17) as thread_pool:
        thread_pool.run(Script([call]), [len(wrong)])

    assert not wrong.any()
    assert pool == scratch_pool(8 * NUMBERS)
    assert pool % 64 == 0
