"""Memory from a pool belongs to one borrower at a time."""

import numpy as np
from spaninfer_kernels_cpu.codegen.array_view import numbers_at
from spaninfer_kernels_cpu.runtime.call import Call, Script, word
from spaninfer_kernels_cpu.runtime.scratch_pool import borrow, give_back, pool_of
from spaninfer_kernels_cpu.runtime.thread_pool import Team

NUMBERS = 1000


def write_and_read(words, rows, task):  # noqa: ARG001
    """Fill borrowed memory, and count what of it was not there any more."""
    memory = borrow(word(words, 0), task)
    numbers = numbers_at(memory, NUMBERS, np.int64)
    for i in range(NUMBERS):
        numbers[i] = task
    wrong = numbers_at(word(words, 1), task + 1, np.int64)
    for i in range(NUMBERS):
        wrong[task] += numbers[i] != task
    give_back(memory)


def test_what_a_task_borrows_is_its_own():
    """Also where more threads want some than there are places."""
    pool, wrong = pool_of(8 * NUMBERS - 24), np.zeros(20_000, np.int64)
    call = Call(write_and_read, (pool, wrong.ctypes.data))

    with Team(17) as team:
        team.run(Script([call]), [len(wrong)])

    assert not wrong.any()
    assert pool == pool_of(8 * NUMBERS)
    assert pool % 64 == 0
