"""Worker threads: every task once."""

import itertools
import threading

import pytest
from spaninfer_kernels_cpu.runtime.workers import share


def counter(number):
    """What does each of so many tasks once, and the list of those that were done."""
    left, done = itertools.count(), []

    def work():
        while (mine := next(left)) < number:
            done.append(mine)

    return work, done


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_every_task_is_done_once(num_workers):
    work, done = counter(10_000)

    share(work, num_workers)

    assert sorted(done) == list(range(10_000))


def test_a_worker_that_starts_late_is_not_waited_for():
    release = threading.Event()
    work, done = counter(10)
    busy = threading.Thread(target=share, args=(lambda: release.wait(120), 64))
    busy.start()  # holds every helper

    share(work, 3)

    assert done == list(range(10))
    assert not release.is_set()
    release.set()
    busy.join()


def test_an_error_of_a_worker_reaches_the_caller():
    caller = threading.current_thread()
    reached = threading.Event()

    def work():
        if threading.current_thread() is caller:
            reached.wait(120)
        else:
            reached.set()
            raise MemoryError("no room for sums")

    with pytest.raises(MemoryError, match="no room for sums"):
        share(work, 2)
