"""Tasks are done once each, whoever does them."""

import threading

import numpy as np
import pytest
from numba import njit
from spaninfer_kernels_cpu.runtime.workers import next_task, share


@njit(nogil=True)
def count(counter, done):
    mine = next_task(counter)
    while mine < len(done):
        done[mine] += 1
        mine = next_task(counter)


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_every_task_is_done_once(num_workers):
    done = np.zeros(100_000, np.int64)

    share(count, (done,), num_workers)

    assert (done == 1).all()


def test_a_helper_that_starts_late_is_not_waited_for():
    release = threading.Event()
    done = np.zeros(10, np.int64)
    busy = threading.Thread(target=share, args=(lambda _: release.wait(120), (), 64))
    busy.start()  # holds every helper

    share(count, (done,), 3)

    assert (done == 1).all()
    assert not release.is_set()
    release.set()
    busy.join()


def test_an_error_of_a_helper_reaches_the_caller():
    caller = threading.current_thread()
    reached = threading.Event()

    def kernel(_counter):
        if threading.current_thread() is caller:
            reached.wait(120)
        else:
            reached.set()
            raise MemoryError("no room for sums")

    with pytest.raises(MemoryError, match="no room for sums"):
        share(kernel, (), 2)
